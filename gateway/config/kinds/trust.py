"""TrustFlag: something that a tool can do. TrustTier: how far the operator of a tool is trusted."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.config.kinds.common_specs import DocumentModel, ListOf, Metadata, OptionalField, SpecModel
from gateway.config.kinds.scalars import Duration, Name, Prose

BackendType = Literal["http", "python", "command", "mcp"]


class HintSpec(SpecModel):
    """Hints that MCP clients receive for tools with the flag."""

    read_only: OptionalField[bool] = Field(None, description="The tool changes nothing.")
    destructive: OptionalField[bool] = Field(None, description="The tool may destroy something.")
    idempotent: OptionalField[bool] = Field(None, description="Repeating a call has no further effect.")
    open_world: OptionalField[bool] = Field(None, description="The tool interacts with external systems.")


class TrustFlagSpec(SpecModel):
    """Something that a tool can do and a reviewer must know."""

    description: Prose = Field(description="What a tool with this flag can do.")
    implies: ListOf[Name] = Field((), description="Flags that this flag implies.")
    hint: OptionalField[HintSpec] = Field(None, description="Hints that MCP clients receive for tools with the flag.")


class TierRequirementsSpec(SpecModel):
    """Requirements of a tier."""

    pinned: bool = Field(False, description="Imported definitions must be pinned in the lock file.")
    reviewed_within: OptionalField[Duration] = Field(None, description="Maximum age of a review.")


class TierProhibitionsSpec(SpecModel):
    """Prohibitions of a tier."""

    backends: ListOf[BackendType] = Field((), description="Backend types that its tools must not use.")
    flags: ListOf[Name] = Field((), description="TrustFlags that its tools must not have.")
    confirmation: bool = Field(False, description="Whether callers are forbidden to confirm their own calls.")


class TrustTierSpec(SpecModel):
    """A level of trust in the operator of a tool."""

    rank: Annotated[int, Field(ge=0)] = Field(description="Rank of the tier; lower is more trusted.")
    description: Prose = Field(description="Tools or operators in this tier.")
    origin: Literal["first-party", "third-party-private", "third-party-public"] = Field(
        description="Origin of results, on the same scale as for media."
    )
    may_be_trusted: bool = Field(False, description="Whether its tools may set trusted: true.")
    callable: bool = Field(True, description="Whether its tools can be called.")
    requires: OptionalField[TierRequirementsSpec] = Field(None, description="Requirements for its tools.")
    forbids: OptionalField[TierProhibitionsSpec] = Field(None, description="Prohibitions for its tools.")
    adds_flags: ListOf[Name] = Field((), description="TrustFlags that every tool of the tier has.")


class TrustFlagDocument(DocumentModel):
    """Something that tools can do, with a name for rules and selectors."""

    kind: Literal["TrustFlag"] = Field(description="Kind of the document.")
    metadata: Metadata = Field(description="Name of the document.")
    spec: TrustFlagSpec = Field(description="Meaning of the flag.")


class TrustTierDocument(DocumentModel):
    """A level of trust, with its requirements and prohibitions."""

    kind: Literal["TrustTier"] = Field(description="Kind of the document.")
    metadata: Metadata = Field(description="Name of the document.")
    spec: TrustTierSpec = Field(description="Meaning of the tier.")
