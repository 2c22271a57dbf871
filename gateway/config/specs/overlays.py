"""Overlay: what differs in one environment. It changes documents, it never adds one."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from gateway.config.specs.base import Broken, Some, Spec
from gateway.config.specs.common import Document, Json, OwnedMetadata
from gateway.config.specs.scalars import Name

PatchedKind = Literal[
    "Gateway",
    "IdentityProvider",
    "Storage",
    "Telemetry",
    "TrustFlag",
    "TrustTier",
    "ArtifactClass",
    "CollisionPolicy",
    "GateRule",
    "Pipeline",
    "Tool",
    "Upstream",
    "Catalogue",
]


class Target(Spec):
    """The document that a patch changes."""

    kind: PatchedKind = Field(description="Its kind.")
    name: Name = Field(description="Its name.")


class Patch(Spec):
    """A change to one document."""

    target: Target = Field(description="The document that is changed; it must exist.")
    merge: Annotated[Json, Field(min_length=1)] = Field(
        description="Merged into its spec: mappings merge, lists and scalars replace, null removes."
    )


class OverlaySpec(Spec):
    """Changes for one environment."""

    environment: Name = Field(description="Environment in which they count.")
    patches: Some[Patch] = Field(description="The changes, one per document.")

    def broken_rules(self) -> Iterable[Broken]:
        seen: set[tuple[str, str]] = set()
        for index, patch in enumerate(self.patches):
            target = (patch.target.kind, patch.target.name)
            if target in seen:
                yield Broken(("patches", index, "target"), f"{'/'.join(target)} is patched twice", "join the patches")
            seen.add(target)


class OverlayDocument(Document):
    """What differs in one environment."""

    kind: Literal["Overlay"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Who the document is and who answers for it.")
    spec: OverlaySpec = Field(description="The environment and its changes.")
