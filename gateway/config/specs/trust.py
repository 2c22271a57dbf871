"""TrustFlag and TrustTier: what a tool can do, and how much we trust who runs it."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.config.specs.base import Many, Maybe, Spec
from gateway.config.specs.common import Document, Metadata
from gateway.config.specs.scalars import Duration, Name, Prose

BackendType = Literal["http", "python", "command", "mcp"]


class Hint(Spec):
    """The hints that MCP clients are given for tools with the flag."""

    read_only: Maybe[bool] = Field(None, description="The tool changes nothing.")
    destructive: Maybe[bool] = Field(None, description="The tool may destroy something.")
    idempotent: Maybe[bool] = Field(None, description="Calling it twice is like calling it once.")
    open_world: Maybe[bool] = Field(None, description="The tool deals with the world outside.")


class TrustFlagSpec(Spec):
    """One thing that a tool can do and a reviewer cares about."""

    description: Prose = Field(description="What a tool with this flag can do.")
    implies: Many[Name] = Field((), description="Flags that come with this one.")
    hint: Maybe[Hint] = Field(None, description="What MCP clients are told about tools with the flag.")


class TierRequires(Spec):
    """Obligations of a tier."""

    pinned: bool = Field(False, description="Imported definitions must be pinned in the lock file.")
    reviewed_within: Maybe[Duration] = Field(None, description="Age at which a review no longer counts.")


class TierForbids(Spec):
    """Prohibitions of a tier."""

    backends: Many[BackendType] = Field((), description="Backend types its tools may not use.")
    flags: Many[Name] = Field((), description="TrustFlags its tools may not carry.")
    confirmation: bool = Field(False, description="Whether callers may not confirm calls of its tools themselves.")


class TrustTierSpec(Spec):
    """One step on the scale of how much we trust who runs a tool."""

    rank: Annotated[int, Field(ge=0)] = Field(description="Place on the scale: lower is more trusted.")
    description: Prose = Field(description="Who is in this tier.")
    origin: Literal["first-party", "third-party-private", "third-party-public"] = Field(
        description="Where results of the tier come from, on the scale that media use too."
    )
    may_be_trusted: bool = Field(False, description="Whether its tools may set trusted.")
    callable: bool = Field(True, description="Whether its tools may be called at all.")
    requires: Maybe[TierRequires] = Field(None, description="What its tools must have.")
    forbids: Maybe[TierForbids] = Field(None, description="What its tools may not have.")
    adds_flags: Many[Name] = Field((), description="TrustFlags that every tool of the tier carries.")


class TrustFlagDocument(Document):
    """A thing that tools can do, named so that rules can speak of it."""

    kind: Literal["TrustFlag"] = Field(description="Kind of the document.")
    metadata: Metadata = Field(description="Who the document is.")
    spec: TrustFlagSpec = Field(description="What the flag means.")


class TrustTierDocument(Document):
    """A step on the scale of trust, with its obligations."""

    kind: Literal["TrustTier"] = Field(description="Kind of the document.")
    metadata: Metadata = Field(description="Who the document is.")
    spec: TrustTierSpec = Field(description="What the tier means.")
