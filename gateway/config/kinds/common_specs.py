"""The base model, and parts that several kinds share: envelope, secrets, credentials, tool selectors, limits.

Every model is strict, closed and frozen, with camelCase names in YAML and snake_case names in Python. `check_rules`
reports fields that contradict each other.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    SerializationInfo,
    Strict,
    Tag,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import CoreSchema, no_info_plain_validator_function

from gateway.config.kinds.scalars import (
    Day,
    Duration,
    EnvName,
    FilePath,
    HeaderName,
    HeaderValue,
    Name,
    NamePattern,
    SingleLineText,
    Size,
)

FieldPath = tuple[str | int, ...]

BROKEN_RULES: Final = "broken-rules"
"""The pydantic error type that carries a list of `RuleViolation` to `find_shape_problems`."""


def yaml_name(field: str) -> str:
    """Convert `on_collision` to `onCollision`. A trailing underscore (`class_`) avoids Python keywords."""
    first, *rest = field.rstrip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)


@dataclass(frozen=True, slots=True)
class RuleViolation:
    """A violated rule over several fields. `path` starts at the model that has the rule."""

    path: FieldPath
    message: str
    help: str | None = None
    code: str = "wrong-value"
    at_key: bool = False


class SpecModel(BaseModel):
    """Base of every model."""

    model_config = ConfigDict(
        alias_generator=yaml_name,
        extra="forbid",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,  # a value may be a secret in the wrong place
        defer_build=True,  # a folder rarely uses all kinds
        protected_namespaces=(),
    )

    def check_rules(self) -> Iterable[RuleViolation]:
        """Return violated rules over several fields. Called only if each field is valid."""
        return ()

    @model_validator(mode="after")
    def _raise_violations(self) -> "SpecModel":
        if broken := tuple(self.check_rules()):
            raise PydanticCustomError(BROKEN_RULES, "fields contradict each other", {"broken": broken})
        return self


T = TypeVar("T")

ListOf = Annotated[tuple[T, ...], Strict(False)]
"""A list, stored as a tuple; strict mode alone would not convert it."""

NonEmptyListOf = Annotated[tuple[T, ...], Strict(False), Field(min_length=1)]
"""A list with at least one entry."""


class _NeverNull:
    """Makes a field optional but refuses an explicit `null`, which is usually a forgotten value."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(drop_none(source))


def drop_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    members = tuple(part for part in get_args(annotation) if part is not type(None))
    return members[0] if len(members) == 1 else Union[members]  # noqa: UP007 - the members are only known at run time


OptionalField = Annotated[T | None, _NeverNull()]
"""An optional field; `None` if it is left out."""


class _OnlyTrue:
    """Accepts only `true`; a plain literal would accept 1."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_plain_validator_function(self.read)

    def read(self, value: object) -> Literal[True]:
        if value is not True:
            raise PydanticCustomError("wrong-value", "the only allowed value is true")
        return True


OnlyTrue = Annotated[Literal[True], _OnlyTrue()]


def _word_or_list(value: object) -> str:
    return "list" if isinstance(value, list | tuple) else "word"


def _text_or_object(value: object) -> str:
    return "object" if isinstance(value, dict | BaseModel) else "text"


Word = TypeVar("Word")
NonEmptyWords = TypeVar("NonEmptyWords")
WordOrList = Annotated[
    Annotated[Word, Tag("word")] | Annotated[NonEmptyWords, Tag("list")], Discriminator(_word_or_list)
]
TextOrObject = Annotated[
    Annotated[Word, Tag("text")] | Annotated[NonEmptyWords, Tag("object")], Discriminator(_text_or_object)
]


def exactly_one_schema(*names: str) -> dict[str, Any]:
    """Return the JSON Schema of an exactly-one rule for editors; `check_exactly_one` is the rule of the loader."""
    return {"oneOf": [{"required": [name]} for name in names]}


def check_exactly_one(given: dict[str, object | None], what: str) -> Iterator[RuleViolation]:
    """Report a violation unless exactly one of the named values is set."""
    present = [name for name, value in given.items() if value is not None]
    names = " or ".join(f"'{name}'" for name in given)
    if not present:
        yield RuleViolation((), f"{what} needs {names}", code="missing-field", at_key=True)
    for extra in present[1:]:
        yield RuleViolation((extra,), f"{what} takes only one of {names}", help="remove one of them", at_key=True)


API_VERSION: Final = "gateway/v1"
SECRETS_ARE_OBJECTS: Final = "secrets are objects: write {fromEnv: NAME} or {fromFile: path}"

JsonValue = dict[str, Any]
Labels = dict[Name, SingleLineText]
BaseArtifact = Literal["text", "json", "markdown", "yaml", "xml", "toon", "source"]
"""The built-in artifact classes."""
BUILT_IN_ARTIFACT_CLASSES: Final[Mapping[str, str]] = {
    "text": "gateway.artifacts.spooled_artifact:SpooledArtifact",
    "json": "gateway.artifacts.formats.json_artifact:SpooledJsonArtifact",
    "markdown": "gateway.artifacts.formats.markdown_artifact:SpooledMarkdownArtifact",
    "yaml": "gateway.artifacts.formats.yaml_artifact:SpooledYamlArtifact",
    "xml": "gateway.artifacts.formats.xml_artifact:SpooledXmlArtifact",
    "toon": "gateway.artifacts.formats.toon_artifact:SpooledToonArtifact",
    "source": "gateway.artifacts.formats.source_code.source_artifact:SpooledEcmascriptArtifact",
}
UNMASKED_ARTIFACTS: Final = frozenset({"markdown", "xml", "toon", "source"})
"""Built-in classes whose values cannot be masked one by one: `redact` hides the whole result."""
OnCollisionSpec = Literal["throw", "replace", "keep"]
PolicyAction = Literal["discover", "invoke", "read", "approve", "observe", "administer"]

CREDENTIAL_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"})


class Metadata(SpecModel):
    """Name and description of a document. The owner is optional."""

    name: Name = Field(description="Name of the document, unique within its kind.")
    title: OptionalField[SingleLineText] = Field(None, description="Short title for people.")
    owner: OptionalField[Name] = Field(None, description="Team that is responsible for the document.")
    labels: Labels = Field({}, description="Labels that rules and catalogues can select by.")
    annotations: JsonValue = Field(
        {}, description="Free notes for people and other programs; the gateway ignores them."
    )


class OwnedMetadata(Metadata):
    """Name and owner of a document."""

    owner: Name = Field(description="Team that is responsible for the document.")


class DocumentModel(SpecModel):
    """The fields around every spec."""

    api_version: Literal["gateway/v1"] = Field(description="Version of the format.")


class SecretSpec(SpecModel):
    """Reference to a secret. The secret itself is never written in a document."""

    model_config = ConfigDict(json_schema_extra=exactly_one_schema("fromEnv", "fromFile"))

    from_env: OptionalField[EnvName] = Field(None, description="Environment variable that holds it.")
    from_file: OptionalField[FilePath] = Field(
        None, description="File that holds it, relative to the configuration folder."
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_text(cls, data: object) -> object:
        if isinstance(data, str | int | float):
            raise PydanticCustomError("secret-as-text", SECRETS_ARE_OBJECTS)
        return data

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from check_exactly_one({"fromEnv": self.from_env, "fromFile": self.from_file}, "a secret")

    @model_serializer
    def _serialise(self, info: SerializationInfo) -> str | dict[str, str] | None:
        """Serialise as `(secret)`, or as the reference with the context `{"references": True}`."""
        if not self:  # pydantic also calls this with `None` for an optional field
            return None
        if not isinstance(info.context, Mapping) or info.context.get("references") is not True:
            return repr(self)
        places = {"fromEnv": self.from_env, "fromFile": self.from_file}
        return {key: place for key, place in places.items() if place is not None}

    def __repr__(self) -> str:
        return "(secret)"

    __str__ = __repr__


class BearerAuthSpec(SpecModel):
    """A token in the Authorization header."""

    scheme: Literal["bearer"] = Field(description="A bearer token.")
    token: SecretSpec = Field(description="The token.")


class BasicAuthSpec(SpecModel):
    """A user name and a password in the Authorization header."""

    scheme: Literal["basic"] = Field(description="HTTP basic authentication.")
    username: SingleLineText = Field(description="The user name.")
    password: SecretSpec = Field(description="The password.")


class HeaderAuthSpec(SpecModel):
    """A key in a header that the service defines."""

    scheme: Literal["header"] = Field(description="A key in a header.")
    name: HeaderName = Field(description="Name of the header.")
    value: SecretSpec = Field(description="Its value.")


class QueryAuthSpec(SpecModel):
    """A key in the query string. Use it only if the service accepts nothing else: servers log URLs."""

    scheme: Literal["query"] = Field(description="A key in the query string.")
    name: SingleLineText = Field(description="Name of the query parameter.")
    value: SecretSpec = Field(description="Its value.")


class CookieAuthSpec(SpecModel):
    """A key in a cookie."""

    scheme: Literal["cookie"] = Field(description="A key in a cookie.")
    name: HeaderName = Field(description="Name of the cookie.")
    value: SecretSpec = Field(description="Its value.")


AuthSpec = Annotated[BearerAuthSpec | BasicAuthSpec | HeaderAuthSpec, Field(discriminator="scheme")]
HeadersSpec = dict[HeaderName, HeaderValue]
EnvValue = TextOrObject[str, SecretSpec]
Env = dict[EnvName, EnvValue]


def check_plain_credentials(headers: HeadersSpec, field: str) -> Iterable[RuleViolation]:
    for name in headers:
        if name.lower() in CREDENTIAL_HEADERS:
            yield RuleViolation(
                (field, name), "a credential must not be a plain header", "use 'auth' instead", "secret-as-text"
            )


class ReviewSpec(SpecModel):
    """The last review of the trust settings."""

    date: Day = Field(description="Day of the review.")
    by: Name = Field(description="Reviewer.")


class TrustSpec(SpecModel):
    """How far the tool and its operator are trusted, and what the tool can do."""

    tier: OptionalField[Name] = Field(None, description="TrustTier; the default tier of the Gateway if left out.")
    trusted: bool = Field(False, description="Whether results are rendered as trusted text; the tier must allow it.")
    flags: OptionalField[ListOf[Name]] = Field(
        None,
        description="TrustFlags: what the tool can do; [] declares no effects. If left out, the effects are unknown "
        "and count as writes, destructive and egress.",
    )
    reviewed: OptionalField[ReviewSpec] = Field(None, description="Date and reviewer of the last review.")


class ToolLimitsSpec(SpecModel):
    """Limits of a call."""

    timeout: OptionalField[Duration] = Field(None, description="Maximum duration of a call.")
    max_output: OptionalField[Size] = Field(None, description="Maximum size of a result.")
    concurrent: OptionalField[Annotated[int, Field(ge=1)]] = Field(
        None, description="Maximum number of concurrent calls."
    )


class ToolSelectorSpec(SpecModel):
    """Selects tools that match all given keys; within a key, any entry matches."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    tools: ListOf[NamePattern] = Field((), description="Names or patterns of tools.")
    labels: Labels = Field({}, description="Labels that a tool must have.")
    flags: ListOf[Name] = Field((), description="TrustFlags, of which a tool must have one.")
    upstreams: ListOf[NamePattern] = Field((), description="Names or patterns of the tool's upstream.")
    tiers: ListOf[Name] = Field((), description="TrustTiers of the tool.")
    artifacts: ListOf[Name] = Field((), description="Artifact classes of the tool's results.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if not any(getattr(self, field) for field in type(self).model_fields):
            yield RuleViolation((), "the selector is empty", 'add a criterion, for example tools: ["*"]')
