"""ArtifactClass: what the bytes of a result are, how long they stay and where they may flow."""

from collections.abc import Iterable
from typing import Literal

from pydantic import ConfigDict, Field

from gateway.config.specs.base import Broken, Many, Maybe, Some, Spec, WordOrList, exactly_one, one_of_missing
from gateway.config.specs.common import BaseArtifact, Document, Json, OwnedMetadata
from gateway.config.specs.gateway import Capture
from gateway.config.specs.scalars import Duration, EntryPoint, JsonPath, Name, Prose, Size


class Flow(Spec):
    """Where artifacts of the class may go."""

    max_tier: Maybe[Name] = Field(None, description="Least trusted TrustTier that may receive them.")
    blocked_by: Many[Name] = Field((), description="TrustFlags of tools that may not receive them.")


class ArtifactClassSpec(Spec):
    """What a family of results is and what may happen to it."""

    model_config = ConfigDict(json_schema_extra=exactly_one("base", "class"))

    description: Prose = Field(description="What such an artifact is.")
    base: Maybe[BaseArtifact] = Field(None, description="Built-in artifact to start from.")
    class_: Maybe[EntryPoint] = Field(None, description="Artifact class of our own, as module:Name.")
    options: Json = Field({}, description="Options of the base or the class.")
    queries: WordOrList[Literal["all"], Some[Name]] = Field("all", description="Query tools that are offered over it.")
    sensitivity: Literal["public", "internal", "confidential", "restricted"] = Field(
        "internal", description="How much harm a leak would do."
    )
    max_size: Maybe[Size] = Field(None, description="Largest artifact of the class.")
    inline_below: Maybe[Size] = Field(None, description="Size under which the result goes into the prompt.")
    retain: Maybe[Duration] = Field(None, description="How long artifacts are kept.")
    redact: Many[JsonPath] = Field((), description="Paths masked in prompts and traces, never in the stored bytes.")
    flow: Maybe[Flow] = Field(None, description="Where artifacts of the class may go.")
    capture: Maybe[Capture] = Field(None, description="What telemetry may carry; it can only tighten Telemetry's.")

    def broken_rules(self) -> Iterable[Broken]:
        yield from one_of_missing({"base": self.base, "class": self.class_}, "an artifact class")
        if self.max_size is not None and self.inline_below is not None and self.inline_below > self.max_size:
            yield Broken(("inlineBelow",), "inlineBelow is larger than maxSize")


class ArtifactClassDocument(Document):
    """A family of results: sensitivity, size, retention, masking, flow."""

    kind: Literal["ArtifactClass"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Who the document is and who answers for it.")
    spec: ArtifactClassSpec = Field(description="What the artifacts are.")
