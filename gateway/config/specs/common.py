"""Parts that several kinds share: the envelope, secrets, credentials, selections of tools, limits."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, SerializationInfo, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from gateway.config.specs.base import Broken, Many, Maybe, Spec, TextOrObject, exactly_one, one_of_missing
from gateway.config.specs.scalars import (
    Day,
    Duration,
    EnvName,
    FilePath,
    HeaderName,
    HeaderValue,
    Line,
    Name,
    Pattern,
    Size,
)

API_VERSION: Final = "gateway/v1"
SECRETS_ARE_OBJECTS: Final = "secrets are objects: write {fromEnv: NAME} or {fromFile: path}"

Json = dict[str, Any]
Labels = dict[Name, Line]
BaseArtifact = Literal["text", "json", "markdown", "yaml", "xml", "toon", "source"]
OnCollision = Literal["throw", "replace", "keep"]
Action = Literal["discover", "invoke", "read", "approve", "observe", "administer"]

CREDENTIAL_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"})


class Metadata(Spec):
    """Who a document is. An owner is welcome, but not asked for."""

    name: Name = Field(description="Name of the document, unique among those of its kind.")
    title: Maybe[Line] = Field(None, description="Short name for people.")
    owner: Maybe[Name] = Field(None, description="Team that answers for the document.")
    labels: Labels = Field({}, description="Keys and values by which rules and catalogues select.")
    annotations: Json = Field({}, description="Free notes for people and other programs; the gateway ignores them.")


class OwnedMetadata(Metadata):
    """Who a document is and who answers for it."""

    owner: Name = Field(description="Team that answers for the document.")


class Document(Spec):
    """The envelope around every spec."""

    api_version: Literal["gateway/v1"] = Field(description="Version of the format.")


class Secret(Spec):
    """Where a secret comes from; the secret itself is never written in a document."""

    model_config = ConfigDict(json_schema_extra=exactly_one("fromEnv", "fromFile"))

    from_env: Maybe[EnvName] = Field(None, description="Environment variable that holds it.")
    from_file: Maybe[FilePath] = Field(None, description="File that holds it, relative to the configuration folder.")

    @model_validator(mode="before")
    @classmethod
    def _is_an_object(cls, data: object) -> object:
        if isinstance(data, str | int | float):
            raise PydanticCustomError("secret-as-text", SECRETS_ARE_OBJECTS)
        return data

    def broken_rules(self) -> Iterable[Broken]:
        yield from one_of_missing({"fromEnv": self.from_env, "fromFile": self.from_file}, "a secret")

    @model_serializer
    def _dumped(self, info: SerializationInfo) -> str | dict[str, str] | None:
        """`(secret)`; with the context `{"references": True}`, the object that names its place."""
        if not self:  # `None`: a field that may be left out, and was, is asked as well
            return None
        if not isinstance(info.context, Mapping) or info.context.get("references") is not True:
            return repr(self)
        places = {"fromEnv": self.from_env, "fromFile": self.from_file}
        return {key: place for key, place in places.items() if place is not None}

    def __repr__(self) -> str:
        return "(secret)"

    __str__ = __repr__


class BearerAuth(Spec):
    """A token in the Authorization header."""

    scheme: Literal["bearer"] = Field(description="A bearer token.")
    token: Secret = Field(description="The token.")


class BasicAuth(Spec):
    """A user name and a password in the Authorization header."""

    scheme: Literal["basic"] = Field(description="HTTP basic authentication.")
    username: Line = Field(description="The user name.")
    password: Secret = Field(description="The password.")


class HeaderAuth(Spec):
    """A key in a header of the service's own choosing."""

    scheme: Literal["header"] = Field(description="A key in a header.")
    name: HeaderName = Field(description="Name of the header.")
    value: Secret = Field(description="Its value.")


class QueryAuth(Spec):
    """A key in the query, for services that take it nowhere else: servers write addresses into their logs."""

    scheme: Literal["query"] = Field(description="A key in the query.")
    name: Line = Field(description="Name of the query parameter.")
    value: Secret = Field(description="Its value.")


class CookieAuth(Spec):
    """A key in a cookie."""

    scheme: Literal["cookie"] = Field(description="A key in a cookie.")
    name: HeaderName = Field(description="Name of the cookie.")
    value: Secret = Field(description="Its value.")


Auth = Annotated[BearerAuth | BasicAuth | HeaderAuth, Field(discriminator="scheme")]
Headers = dict[HeaderName, HeaderValue]
EnvValue = TextOrObject[str, Secret]
Env = dict[EnvName, EnvValue]


def credentials_as_text(headers: Headers, field: str) -> Iterable[Broken]:
    for name in headers:
        if name.lower() in CREDENTIAL_HEADERS:
            yield Broken((field, name), "a credential is not a plain header", "use 'auth' instead", "secret-as-text")


class Reviewed(Spec):
    """The last review of how much something may be trusted."""

    date: Day = Field(description="Day of the review.")
    by: Name = Field(description="Who reviewed.")


class Trust(Spec):
    """How much whoever runs it is trusted, and what it can do."""

    tier: Maybe[Name] = Field(None, description="A TrustTier; without one, the default tier of the gateway.")
    trusted: bool = Field(False, description="Render results as trusted text; the tier must allow it.")
    flags: Maybe[Many[Name]] = Field(
        None,
        description="TrustFlags: what it can do; [] declares no effects. Left out, the effects are unknown, which "
        "counts as writes, destructive and egress.",
    )
    reviewed: Maybe[Reviewed] = Field(None, description="When and by whom that was last judged.")


class Limits(Spec):
    """What a call may cost."""

    timeout: Maybe[Duration] = Field(None, description="Longest time for one call.")
    max_output: Maybe[Size] = Field(None, description="Largest result.")
    concurrent: Maybe[Annotated[int, Field(ge=1)]] = Field(None, description="Calls that may run at the same time.")


class Selector(Spec):
    """Chooses tools: all given keys must hold; within a key, any entry."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    tools: Many[Pattern] = Field((), description="Names or patterns of tools.")
    labels: Labels = Field({}, description="Labels that a tool must carry.")
    flags: Many[Name] = Field((), description="TrustFlags, of which a tool carries one.")
    upstreams: Many[Pattern] = Field((), description="Upstreams that a tool comes from.")
    tiers: Many[Name] = Field((), description="TrustTiers that a tool is in.")
    artifacts: Many[Name] = Field((), description="Artifact classes that a tool yields.")

    def broken_rules(self) -> Iterable[Broken]:
        if not any(getattr(self, field) for field in type(self).model_fields):
            yield Broken((), "nothing is selected", 'name what is meant, for instance tools: ["*"]')
