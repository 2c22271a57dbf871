"""CollisionPolicy: what happens when two tools want one name."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from gateway.config.specs.base import Broken, Many, Maybe, Some, Spec
from gateway.config.specs.common import Document, OnCollision, OwnedMetadata
from gateway.config.specs.scalars import Pattern, Text

Prefix = Annotated[
    str,
    Text(
        "a prefix",
        "write letters, digits, '_', '-', '.' and {upstream}",
        r"(?:[A-Za-z0-9_.-]|\{upstream\}){0,64}",
        code="bad-name",
    ),
]


class Names(Spec):
    """When two names are the same."""

    compare: Literal["exact", "folded"] = Field("folded", description="Folded ignores case and the characters - _ .")
    lookalikes: Literal["throw", "ignore"] = Field("throw", description="What to do about names that look alike.")
    reserved: Many[Pattern] = Field((), description="Names that no declared or imported tool may take.")


class Imports(Spec):
    """How imported tools are named."""

    prefix: Prefix = Field("{upstream}_", description="Put before each imported name.")


class CollisionPolicySpec(Spec):
    """Who wins when two tools want one name."""

    on_collision: OnCollision = Field("throw", description="What happens where the incoming tool has no opinion.")
    honour_tool: Literal["sameOrHigherTrust", "always", "never"] = Field(
        "sameOrHigherTrust",
        description="When the incoming tool's own onCollision counts. Whatever it says, a tool never replaces one that "
        "is trusted more, or one of its own tier that can do less.",
    )
    order: Some[Literal["tools", "upstreams"]] = Field(
        ("tools", "upstreams"), description="Who registers first; the later one is incoming."
    )
    names: Maybe[Names] = Field(None, description="When two names are the same.")
    imports: Maybe[Imports] = Field(None, description="How imported tools are named.")

    def broken_rules(self) -> Iterable[Broken]:
        if sorted(self.order) != ["tools", "upstreams"]:
            yield Broken(("order",), "order names tools and upstreams once each")


class CollisionPolicyDocument(Document):
    """What happens when two tools want one name."""

    kind: Literal["CollisionPolicy"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Who the document is and who answers for it.")
    spec: CollisionPolicySpec = Field(description="The policy.")
