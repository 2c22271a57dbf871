"""Classes of tools and results: trust flags, trust tiers and artifact classes.

A flag is something that a tool can do, a tier how far the operator of a tool is trusted, and an artifact class the type
of a result, its retention, and which tools may receive it.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gateway.config.kinds.common_specs import (
    BaseArtifact,
    DocumentModel,
    JsonValue,
    ListOf,
    Metadata,
    NonEmptyListOf,
    OptionalField,
    OwnedMetadata,
    RuleViolation,
    SpecModel,
    WordOrList,
    check_exactly_one,
    exactly_one_schema,
)
from gateway.config.kinds.installation import CaptureSpec
from gateway.config.kinds.scalars import Duration, EntryPoint, JsonPathText, Name, Prose, Size

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


class FlowSpec(SpecModel):
    """Tools that may receive artifacts of the class."""

    max_tier: OptionalField[Name] = Field(None, description="Least trusted TrustTier whose tools may receive them.")
    blocked_by: ListOf[Name] = Field((), description="TrustFlags of tools that must not receive them.")


class ArtifactClassSpec(SpecModel):
    """A class of results and its handling."""

    model_config = ConfigDict(json_schema_extra=exactly_one_schema("base", "class"))

    description: Prose = Field(description="Description of such an artifact.")
    base: OptionalField[BaseArtifact] = Field(None, description="Built-in artifact type.")
    class_: OptionalField[EntryPoint] = Field(None, description="Custom artifact class, as module:Name.")
    options: JsonValue = Field({}, description="Options of the base or the class.")
    queries: WordOrList[Literal["all"], NonEmptyListOf[Name]] = Field(
        "all", description="Query tools for its artifacts."
    )
    sensitivity: Literal["public", "internal", "confidential", "restricted"] = Field(
        "internal", description="How harmful a leak would be."
    )
    max_size: OptionalField[Size] = Field(None, description="Maximum size of an artifact.")
    inline_below: OptionalField[Size] = Field(None, description="Size below which a result is shown inline.")
    retain: OptionalField[Duration] = Field(None, description="How long artifacts are retained.")
    redact: ListOf[JsonPathText] = Field(
        (), description="Paths masked in prompts and traces, never in the stored bytes."
    )
    flow: OptionalField[FlowSpec] = Field(None, description="Tools that may receive artifacts of the class.")
    capture: OptionalField[CaptureSpec] = Field(
        None, description="Content that telemetry may contain; it can only restrict the setting of Telemetry."
    )

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from check_exactly_one({"base": self.base, "class": self.class_}, "an artifact class")
        if self.max_size is not None and self.inline_below is not None and self.inline_below > self.max_size:
            yield RuleViolation(("inlineBelow",), "inlineBelow is larger than maxSize")


class ArtifactClassDocument(DocumentModel):
    """A class of results: sensitivity, size, retention, masking, flow."""

    kind: Literal["ArtifactClass"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: ArtifactClassSpec = Field(description="The artifacts and their handling.")
