"""ArtifactClass: the type of a result, its retention, and which tools may receive it."""

from collections.abc import Iterable
from typing import Literal

from pydantic import ConfigDict, Field

from gateway.config.kinds.common_specs import (
    BaseArtifact,
    DocumentModel,
    JsonValue,
    ListOf,
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
