"""Tool: one thing an agent can call, with its input, output, trust, limits and backend."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from gateway.config.specs.backends import Backend
from gateway.config.specs.base import Broken, Maybe, Spec
from gateway.config.specs.common import Document, Json, Limits, OnCollision, OwnedMetadata, Trust
from gateway.config.specs.scalars import Day, Line, Name, Prose, Text, Version
from gateway.governance.diagnostics import did_you_mean

MimeType = Annotated[
    str,
    Text("a media type", "write a type and a subtype: image/png", r"[a-z]+/[A-Za-z0-9.+-]{1,100}"),
]
FileName = Annotated[str, Text("a file name", "write a file name without a folder", r"[^/\\\x00-\x1f]{1,255}")]

_SCHEMA_OF_AN_OBJECT: Final[Any] = {
    "properties": {"schema": {"required": ["type"], "properties": {"type": {"const": "object"}}}}
}
_NEEDS_BY_STATE: Final[Any] = [
    {
        "if": {"properties": {"lifecycle": {"const": "deprecated"}}, "required": ["lifecycle"]},
        "then": {"required": ["deprecation"]},
    },
    {
        "if": {"properties": {"backend": {"properties": {"type": {"enum": ["http", "python", "command"]}}}}},
        "then": {"required": ["input"]},
    },
]


class Deprecation(Spec):
    """When a tool goes away, and what replaces it."""

    since: Day = Field(description="Day on which callers were told.")
    remove_after: Day = Field(description="Last day on which it works.")
    use: Maybe[Name] = Field(None, description="Tool that replaces it.")

    def broken_rules(self) -> Iterable[Broken]:
        if self.remove_after < self.since:
            yield Broken(("removeAfter",), "removeAfter is before since", code="bad-date")


class Input(Spec):
    """What a call takes."""

    model_config = ConfigDict(json_schema_extra={"allOf": [_SCHEMA_OF_AN_OBJECT]})

    schema_: Json = Field(description="JSON Schema of the arguments; its type is object.")

    def broken_rules(self) -> Iterable[Broken]:
        if self.schema_.get("type") != "object":
            place = ("schema", "type") if "type" in self.schema_ else ("schema",)
            yield Broken(place, "arguments are an object", "write type: object at the top of the schema")
        elif not isinstance(self.schema_.get("properties", {}), dict):
            yield Broken(("schema", "properties"), "expected a mapping", code="wrong-type")


class MediaOutput(Spec):
    """What kind of media a tool yields, who vouches for it, and what it may do to a model."""

    kind: Literal["image", "audio", "video", "document"] = Field(description="What it is.")
    mime_type: MimeType = Field(description="Its media type.")
    filename: FileName = Field(description="Its file name.")
    trust_tier: Literal["first-party", "third-party-private", "third-party-public"] = Field(
        description="Where it comes from."
    )
    hazard: Literal["inert", "extractable-instructions", "opaque-perceptual"] = Field(
        description="Whether a model could read instructions in it."
    )
    caption: Maybe[Line] = Field(None, description="Text that stands beside it.")


class Output(Spec):
    """What a call yields."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["artifact", "media"]}})

    artifact: Maybe[Name] = Field(None, description="Built-in artifact or ArtifactClass of the result.")
    media: Maybe[MediaOutput] = Field(None, description="The result is media instead.")
    inline: bool = Field(True, description="Whether the whole result is shown, or a handle to it.")
    schema_: Maybe[Json] = Field(None, description="JSON Schema that the result must fulfil.")

    def broken_rules(self) -> Iterable[Broken]:
        if self.media is not None and self.artifact is not None:
            yield Broken(("media",), "a result is an artifact or media, not both", "remove one of them", at_key=True)
        if self.media is not None and self.schema_ is not None:
            yield Broken(("schema",), "media has no schema", at_key=True)


class ToolSpec(Spec):
    """What the tool does, for whom, and how."""

    model_config = ConfigDict(json_schema_extra={"allOf": _NEEDS_BY_STATE})

    version: Version = Field(description="Version of the definition.")
    lifecycle: Literal["draft", "active", "deprecated", "retired"] = Field(
        "active", description="Where in its life the tool is; only active and deprecated ones can be called."
    )
    deprecation: Maybe[Deprecation] = Field(None, description="When a deprecated tool goes away.")
    description: Prose = Field(description="What the tool does, as models read it.")
    meta: Json = Field({}, description="Free values for stages; the gateway itself does not read them.")
    on_collision: OnCollision = Field("throw", description="What to do if the name is taken; throw is no opinion.")
    ephemeral: bool = Field(False, description="Whether the tool goes away at the end of the turn.")
    idempotent: bool = Field(False, description="Whether calling it twice is like calling it once.")
    trust: Maybe[Trust] = Field(None, description="How much it is trusted, and what it can do.")
    input: Maybe[Input] = Field(None, description="What a call takes; only tools of an upstream may leave it out.")
    output: Maybe[Output] = Field(None, description="What a call yields; without it, text.")
    limits: Maybe[Limits] = Field(None, description="What a call may cost.")
    backend: Backend = Field(description="What runs when the tool is called.")

    def broken_rules(self) -> Iterable[Broken]:
        if self.lifecycle == "deprecated" and self.deprecation is None:
            yield Broken(
                (),
                "a deprecated tool needs 'deprecation'",
                'write deprecation: {since: "2026-09-01", removeAfter: "2027-01-31"}',
                code="missing-field",
                at_key=True,
            )
        if self.input is None:
            if self.backend.type not in ("mcp", "openapi"):
                yield Broken((), "a tool with its own backend needs 'input'", code="missing-field", at_key=True)
            return
        yield from self._wrong_mentions(self.input.schema_)

    def _wrong_mentions(self, schema: Json) -> Iterator[Broken]:
        properties = schema.get("properties", {})
        required = schema.get("required")
        always = required if isinstance(required, list) else ()
        for path, name in (*self.backend.mentions(), *self.backend.picks()):
            if name not in properties:
                near = did_you_mean(name, (known for known in properties if isinstance(known, str)))
                yield Broken(("backend", *path), f"{name!r} is not a property of the input schema", near)
        for path, name in self.backend.mentions():
            if name in properties and name not in always and not _has_default(properties[name]):
                yield Broken(
                    ("backend", *path),
                    f"argument {name!r} may be missing",
                    "make it required or give it a default in the input schema",
                )


def _has_default(schema: object) -> bool:
    return isinstance(schema, dict) and "default" in schema


class ToolDocument(Document):
    """One thing an agent can call."""

    kind: Literal["Tool"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Who the document is and who answers for it.")
    spec: ToolSpec = Field(description="What the tool does, for whom, and how.")
