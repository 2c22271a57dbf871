"""Tool: something that an agent can call, with its input, output, trust, limits and backend.

A backend is an HTTP request, a Python function, a command, or a tool or operation of an upstream. It lists the
arguments that it uses, which must be in the input schema.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from gateway.config.kinds.common_specs import (
    AuthSpec,
    DocumentModel,
    Env,
    FieldPath,
    HeadersSpec,
    JsonValue,
    ListOf,
    NonEmptyListOf,
    OnCollisionSpec,
    OptionalField,
    OwnedMetadata,
    RuleViolation,
    SpecModel,
    ToolLimitsSpec,
    TrustSpec,
    check_plain_credentials,
)
from gateway.config.kinds.scalars import (
    AbsolutePath,
    Day,
    Duration,
    EntryPoint,
    JsonPathText,
    Name,
    PrivateNetwork,
    Prose,
    SingleLineText,
    Size,
    TextScalar,
    UrlTemplateText,
    VersionText,
)
from gateway.registries import suggest_name

ErrorWord = Literal["invalid", "not-permitted", "not-found", "conflict", "unavailable", "failed"]
ExitCode = Annotated[int, Field(ge=0, le=255)]

Argument = Annotated[
    str,
    TextScalar("an argument", "write one argument, without NUL", r"[^\x00]*"),
]

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")


def _parse_status(text: str) -> int:
    return int(text)


class _Status(TextScalar):
    """An HTTP status as a key, which YAML may have parsed as a number."""

    def read(self, value: object) -> int:
        # `super()` without arguments fails in a subclass of a slotted dataclass
        return int(TextScalar.read(self, str(value) if type(value) is int and 0 < value < 1000 else value))


HttpStatusScalar = Annotated[
    int,
    _Status("an HTTP status", "write an HTTP status from 400 to 599", r"[45][0-9]{2}", convert=_parse_status),
]

NETWORKS: Final = "Private networks that the host may resolve to; without them, only public addresses are used."

ArgumentMention = tuple[FieldPath, str]
"""A path in the backend and the argument that it names."""


class ArgumentPathsSpec(SpecModel):
    """Takes values from the call's arguments."""

    from_: Literal["arguments"] = Field(description="Take the call's arguments.")
    only: OptionalField[NonEmptyListOf[SingleLineText]] = Field(
        None, description="Only these arguments; by default, all that the path does not use."
    )


class HttpBackendSpec(SpecModel):
    """One HTTP request per call, to a fixed host."""

    type: Literal["http"] = Field(description="An HTTP request.")
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = Field(description="HTTP method.")
    url: UrlTemplateText = Field(description="URL; {argument} in the path is replaced by the percent-encoded argument.")
    headers: HeadersSpec = Field({}, description="Fixed headers.")
    query: OptionalField[ArgumentPathsSpec] = Field(None, description="Arguments that go into the query string.")
    body: OptionalField[ArgumentPathsSpec] = Field(None, description="Arguments that go into the JSON body.")
    auth: OptionalField[AuthSpec] = Field(None, description="Credentials for the service.")
    networks: ListOf[PrivateNetwork] = Field((), description=NETWORKS)
    pick: OptionalField[JsonPathText] = Field(None, description="JSON path of the result in the response.")
    errors: dict[HttpStatusScalar, ErrorWord] = Field({}, description="Error by HTTP status.")

    def mentions(self) -> Iterator[ArgumentMention]:
        for name in _PLACEHOLDER.findall(self.url):
            yield ("url",), name

    def selected_arguments(self) -> Iterator[ArgumentMention]:
        for field, source in (("query", self.query), ("body", self.body)):
            for index, name in enumerate((source and source.only) or ()):
                yield (field, "only", index), name

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from check_plain_credentials(self.headers, "headers")
        if re.search(r"[{}]", _PLACEHOLDER.sub("", self.url)):
            yield RuleViolation(("url",), "the URL has a brace that is not part of a {placeholder}", code="bad-url")
        if self.body is not None and self.method in ("GET", "HEAD"):
            yield RuleViolation(("body",), f"a {self.method} request has no body", "use 'query' instead", at_key=True)


class PythonBackendSpec(SpecModel):
    """A Python function. The process must allow its package."""

    type: Literal["python"] = Field(description="A Python function.")
    entrypoint: EntryPoint = Field(description="The function, as module:function.")
    run: Literal["loop", "thread", "process"] = Field("thread", description="Where it runs.")

    def mentions(self) -> Iterator[ArgumentMention]:
        return iter(())

    selected_arguments = mentions


class ExitCodesSpec(SpecModel):
    """Meaning of the exit status of a command."""

    ok: NonEmptyListOf[ExitCode] = Field((0,), description="The call succeeded.")
    failed: ListOf[ExitCode] = Field((), description="The call failed in an expected way; its output is the error.")

    def check_rules(self) -> Iterable[RuleViolation]:
        for index, code in enumerate(self.failed):
            if code in self.ok:
                yield RuleViolation(("failed", index), f"exit status {code} cannot be both ok and failed")


class SandboxSpec(SpecModel):
    """Restrictions of a command."""

    network: Literal["none", "host"] = Field("none", description="Network access.")
    cpu: OptionalField[Duration] = Field(None, description="Maximum CPU time.")
    memory: OptionalField[Size] = Field(None, description="Maximum memory.")
    readable: ListOf[AbsolutePath] = Field(
        (), description="Folders and files that it may read and execute, besides system folders; [/] is everything."
    )
    writable: ListOf[AbsolutePath] = Field((), description="Folders that it may write and read; [/] is everything.")


class CommandBackendSpec(SpecModel):
    """A program on this host, started without a shell."""

    type: Literal["command"] = Field(description="A program on this host.")
    argv: NonEmptyListOf[Argument] = Field(
        description="Program and arguments; an entry that is just {argument} is replaced."
    )
    env: Env = Field({}, description="Complete environment of the program.")
    workdir: OptionalField[AbsolutePath] = Field(None, description="Working directory.")
    output: Literal["text", "json"] = Field("text", description="Format of the output.")
    exit: OptionalField[ExitCodesSpec] = Field(None, description="Meaning of the exit status.")
    sandbox: OptionalField[SandboxSpec] = Field(None, description="Restrictions of the program.")

    def mentions(self) -> Iterator[ArgumentMention]:
        for index, argument in enumerate(self.argv):
            if found := _PLACEHOLDER.fullmatch(argument):
                yield ("argv", index), found[1]

    def selected_arguments(self) -> Iterator[ArgumentMention]:
        return iter(())

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from check_program(self.argv)
        for index, argument in enumerate(self.argv):
            if index and _PLACEHOLDER.search(argument) and not _PLACEHOLDER.fullmatch(argument):
                yield RuleViolation(
                    ("argv", index),
                    "a placeholder must be a whole argument",
                    "write the option and its value as two entries",
                )


def check_program(argv: tuple[str, ...]) -> Iterator[RuleViolation]:
    if not argv[0].startswith("/") or ".." in argv[0].split("/") or _PLACEHOLDER.search(argv[0]):
        yield RuleViolation(("argv", 0), "the program must be a fixed absolute path", "for example: /usr/bin/git")


class UpstreamArgumentsSpec(SpecModel):
    """How the arguments differ from those of the upstream's tool. Keys are the upstream's names."""

    fixed: JsonValue = Field({}, description="Values that are always sent; callers can neither see nor set them.")
    hidden: ListOf[SingleLineText] = Field((), description="Arguments that callers can neither see nor set.")
    defaults: JsonValue = Field({}, description="Default values of arguments.")
    renamed: dict[SingleLineText, Name] = Field({}, description="Names that callers use instead.")
    described: dict[SingleLineText, Prose] = Field({}, description="Descriptions that callers see instead.")

    def check_rules(self) -> Iterable[RuleViolation]:
        gone = dict.fromkeys(self.fixed, "fixed") | dict.fromkeys(self.hidden, "hidden")
        for field in ("renamed", "described"):
            for name in getattr(self, field):
                if name in gone:
                    yield RuleViolation((field, name), f"{name!r} is {gone[name]}, so callers never see this")
        for name in self.defaults:
            if name in self.fixed:
                yield RuleViolation(("defaults", name), f"{name!r} is fixed, so the default has no effect")
        for index, name in enumerate(self.hidden):
            if name in self.fixed:
                yield RuleViolation(("hidden", index), f"{name!r} is fixed, so it is hidden already", "remove it here")


class UpstreamBackendSpec(SpecModel):
    """Common fields of both upstream backends."""

    upstream: Name = Field(description="The Upstream.")
    tool: Name = Field(description="Name of the tool or operation on the upstream.")
    arguments: OptionalField[UpstreamArgumentsSpec] = Field(
        None, description="How its arguments differ from those of the upstream's tool."
    )

    def mentions(self) -> Iterator[ArgumentMention]:
        return iter(())

    selected_arguments = mentions


class McpBackendSpec(UpstreamBackendSpec):
    """A tool of an upstream server, published with the name, description and trust of this document."""

    type: Literal["mcp"] = Field(description="A tool of an upstream server.")


class OpenApiBackendSpec(UpstreamBackendSpec):
    """An OpenAPI operation, published with the name, description and trust of this document."""

    type: Literal["openapi"] = Field(description="An operation of an OpenAPI document.")
    headers: HeadersSpec = Field({}, description="Fixed headers, in addition to those of the Upstream.")
    errors: dict[HttpStatusScalar, ErrorWord] = Field({}, description="Error by HTTP status.")

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from check_plain_credentials(self.headers, "headers")


BackendSpec = Annotated[
    HttpBackendSpec | PythonBackendSpec | CommandBackendSpec | McpBackendSpec | OpenApiBackendSpec,
    Field(discriminator="type"),
]

MimeType = Annotated[
    str,
    TextScalar("a media type", "write a type and a subtype: image/png", r"[a-z]+/[A-Za-z0-9.+-]{1,100}"),
]
FileName = Annotated[str, TextScalar("a file name", "write a file name without a folder", r"[^/\\\x00-\x1f]{1,255}")]

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


class DeprecationSpec(SpecModel):
    """When a tool is removed, and its replacement."""

    since: Day = Field(description="Day of the announcement.")
    remove_after: Day = Field(description="Last day on which it can be called.")
    use: OptionalField[Name] = Field(None, description="Tool that replaces it.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if self.remove_after < self.since:
            yield RuleViolation(("removeAfter",), "removeAfter is before since", code="bad-date")


class ToolInputSpec(SpecModel):
    """Arguments of a call."""

    model_config = ConfigDict(json_schema_extra={"allOf": [_SCHEMA_OF_AN_OBJECT]})

    schema_: JsonValue = Field(description="JSON Schema of the arguments; its type is object.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if self.schema_.get("type") != "object":
            place = ("schema", "type") if "type" in self.schema_ else ("schema",)
            yield RuleViolation(place, "arguments must be an object", "write type: object at the top of the schema")
        elif not isinstance(self.schema_.get("properties", {}), dict):
            yield RuleViolation(("schema", "properties"), "expected a mapping", code="wrong-type")


class MediaOutputSpec(SpecModel):
    """Type, origin and hazard of the media that a tool returns."""

    kind: Literal["image", "audio", "video", "document"] = Field(description="Kind of media.")
    mime_type: MimeType = Field(description="Its media type.")
    filename: FileName = Field(description="Its file name.")
    trust_tier: Literal["first-party", "third-party-private", "third-party-public"] = Field(
        description="Origin of the media."
    )
    hazard: Literal["inert", "extractable-instructions", "opaque-perceptual"] = Field(
        description="Whether the media may contain instructions to a model."
    )
    caption: OptionalField[SingleLineText] = Field(None, description="Caption of the media.")


class ToolOutputSpec(SpecModel):
    """Result of a call."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["artifact", "media"]}})

    artifact: OptionalField[Name] = Field(None, description="Built-in artifact type or ArtifactClass of the result.")
    media: OptionalField[MediaOutputSpec] = Field(None, description="Media type of the result, instead of an artifact.")
    inline: bool = Field(True, description="Whether the whole result is shown, or only a handle.")
    schema_: OptionalField[JsonValue] = Field(None, description="JSON Schema that the result must match.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if self.media is not None and self.artifact is not None:
            yield RuleViolation(
                ("media",), "a result is an artifact or media, not both", "remove one of them", at_key=True
            )
        if self.media is not None and self.schema_ is not None:
            yield RuleViolation(("schema",), "media has no schema", at_key=True)


class ToolSpec(SpecModel):
    """Description, trust, input, output and backend of a tool."""

    model_config = ConfigDict(json_schema_extra={"allOf": _NEEDS_BY_STATE})

    version: VersionText = Field(description="Version of the definition.")
    lifecycle: Literal["draft", "active", "deprecated", "retired"] = Field(
        "active", description="Lifecycle; only active and deprecated tools can be called."
    )
    deprecation: OptionalField[DeprecationSpec] = Field(None, description="When a deprecated tool is removed.")
    description: Prose = Field(description="Description of the tool for models.")
    meta: JsonValue = Field({}, description="Free values for stages; the gateway itself ignores them.")
    on_collision: OnCollisionSpec = Field("throw", description="Outcome if the name is taken; throw is no opinion.")
    ephemeral: bool = Field(False, description="Whether the tool is removed at the end of the turn.")
    idempotent: bool = Field(False, description="Whether repeating a call has no further effect.")
    trust: OptionalField[TrustSpec] = Field(None, description="Trust in the tool, and what the tool can do.")
    input: OptionalField[ToolInputSpec] = Field(
        None, description="Arguments of a call; optional only for tools of an upstream."
    )
    output: OptionalField[ToolOutputSpec] = Field(None, description="Result of a call; text if left out.")
    limits: OptionalField[ToolLimitsSpec] = Field(None, description="Limits of a call.")
    backend: BackendSpec = Field(description="Backend that executes a call.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if self.lifecycle == "deprecated" and self.deprecation is None:
            yield RuleViolation(
                (),
                "a deprecated tool needs 'deprecation'",
                'write deprecation: {since: "2026-09-01", removeAfter: "2027-01-31"}',
                code="missing-field",
                at_key=True,
            )
        if self.input is None:
            if self.backend.type not in ("mcp", "openapi"):
                yield RuleViolation((), "a tool without an upstream needs 'input'", code="missing-field", at_key=True)
            return
        yield from self._check_mentions(self.input.schema_)

    def _check_mentions(self, schema: JsonValue) -> Iterator[RuleViolation]:
        properties = schema.get("properties", {})
        required = schema.get("required")
        always = required if isinstance(required, list) else ()
        for path, name in (*self.backend.mentions(), *self.backend.selected_arguments()):
            if name not in properties:
                near = suggest_name(name, (known for known in properties if isinstance(known, str)))
                yield RuleViolation(("backend", *path), f"{name!r} is not a property of the input schema", near)
        for path, name in self.backend.mentions():
            if name in properties and name not in always and not _has_default(properties[name]):
                yield RuleViolation(
                    ("backend", *path),
                    f"the backend uses argument {name!r}, which callers may omit",
                    "make it required, or give it a default in the input schema",
                )


def _has_default(schema: object) -> bool:
    return isinstance(schema, dict) and "default" in schema


class ToolDocument(DocumentModel):
    """Something that an agent can call."""

    kind: Literal["Tool"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: ToolSpec = Field(description="Description, trust, input, output and backend of the tool.")
