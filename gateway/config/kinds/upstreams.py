"""Upstream: a server whose tools are imported, its credentials, and the settings of the import."""

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import Field

from gateway.config.kinds.common_specs import (
    BasicAuthSpec,
    BearerAuthSpec,
    CookieAuthSpec,
    DocumentModel,
    Env,
    HeaderAuthSpec,
    HeadersSpec,
    ListOf,
    NonEmptyListOf,
    OptionalField,
    OwnedMetadata,
    QueryAuthSpec,
    RuleViolation,
    SecretSpec,
    SpecModel,
    ToolLimitsSpec,
    TrustSpec,
    check_plain_credentials,
)
from gateway.config.kinds.installation import is_confidential_url
from gateway.config.kinds.scalars import (
    AbsolutePath,
    Day,
    Duration,
    FilePath,
    Name,
    NamePattern,
    PrivateNetwork,
    Prose,
    SingleLineText,
    TextScalar,
    UrlText,
)
from gateway.config.kinds.tools import NETWORKS, Argument, SandboxSpec, check_program


class CallerAssertionSpec(SpecModel):
    """The signed assertion in which the gateway names the caller. It never contains the caller's token."""

    issuer: SingleLineText = Field(description="Name of the gateway at the authorisation server.")
    audience: OptionalField[SingleLineText] = Field(None, description="Audience; the tokenUrl if left out.")
    algorithm: Literal["ES256", "RS256", "EdDSA", "HS256"] = Field("ES256", description="Signature algorithm.")
    key: SecretSpec = Field(description="Signing key in PEM; for HS256, a shared secret.")


class _TokenEndpoint(SpecModel):
    """Where the gateway gets tokens, and as which client."""

    scheme: str
    token_url: UrlText = Field(
        description="Token endpoint of the authorisation server; https, unless it is on this host."
    )
    client_id: SingleLineText = Field(description="Client ID of the gateway.")
    client_secret: SecretSpec = Field(description="Client secret of the gateway.")
    send: Literal["basic", "post"] = Field("basic", description="Whether both are sent as a header or in the form.")
    scopes: ListOf[SingleLineText] = Field((), description="Requested scopes.")
    audience: OptionalField[SingleLineText] = Field(
        None, description="Audience of the token, if the server requires a name."
    )
    resource: OptionalField[UrlText] = Field(None, description="The audience as a URL (RFC 8707).")

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from _check_token_url(self.token_url)


class ClientCredentialsAuth(_TokenEndpoint):
    """A token for the gateway itself (OAuth 2.1 client credentials)."""

    scheme: Literal["client-credentials"] = Field(description="A token that identifies the gateway.")


class TokenExchangeAuth(_TokenEndpoint):
    """A token for each caller, in exchange for an assertion of the gateway about the caller (RFC 8693)."""

    scheme: Literal["token-exchange"] = Field(description="A token that identifies the caller.")
    assertion: CallerAssertionSpec = Field(description="The assertion in which the gateway names the caller.")


GrantedAuthSpec = ClientCredentialsAuth | TokenExchangeAuth
UpstreamAuthSpec = Annotated[
    BearerAuthSpec
    | BasicAuthSpec
    | HeaderAuthSpec
    | QueryAuthSpec
    | CookieAuthSpec
    | ClientCredentialsAuth
    | TokenExchangeAuth,
    Field(discriminator="scheme"),
]


def _check_token_url(url: str) -> Iterable[RuleViolation]:
    if not is_confidential_url(url):
        yield RuleViolation(("tokenUrl",), "secrets must be sent over https", "write https://", "bad-url")


ReviewFindingCode = Literal[
    "hidden-text",
    "mixed-alphabets",
    "long-text",
    "foreign-address",
    "undeclared-argument",
    "mentions-tool",
    "instructs-model",
]
HostPattern = Annotated[
    str,
    TextScalar(
        "a host",
        "write a host name or a pattern: docs.example.com, *.example.com",
        r"(?:\*\.)?[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){0,16}",
        code="bad-name",
    ),
]


UriPattern = Annotated[
    str,
    TextScalar(
        "a URI",
        "write a URI with its scheme, in which '*' stands for any run of characters: file:///notes/*",
        r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\x00-\x20*]*(?:\*[^\s\x00-\x20*]*)*",
        code="bad-url",
    ),
]


_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ADDRESS: Final = re.compile(r"https?://", re.IGNORECASE)
PLAIN_HTTP: Final = re.compile(r"http://(?!(?:localhost|127\.[0-9.]+|\[::1\])(?:[:/]|$))", re.IGNORECASE)
"""Matches the start of an unencrypted URL of another host."""


class StreamableHttpTransport(SpecModel):
    """An MCP server over HTTP."""

    type: Literal["streamable-http"] = Field(description="An MCP server over HTTP.")
    url: UrlText = Field(description="URL of the server's endpoint.")
    headers: HeadersSpec = Field({}, description="Fixed headers.")
    networks: ListOf[PrivateNetwork] = Field((), description=NETWORKS)

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from check_plain_credentials(self.headers, "headers")


class StdioTransport(SpecModel):
    """An MCP server that the gateway starts as a program."""

    type: Literal["stdio"] = Field(description="An MCP server started as a program.")
    argv: NonEmptyListOf[Argument] = Field(description="Program, by its absolute path, and arguments.")
    env: Env = Field({}, description="Complete environment of the program.")
    workdir: OptionalField[AbsolutePath] = Field(None, description="Working directory.")
    sandbox: OptionalField[SandboxSpec] = Field(None, description="Restrictions of the program.")

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from check_program(self.argv)


class OpenApiTransport(SpecModel):
    """An HTTP service described by OpenAPI; each operation becomes a tool."""

    type: Literal["openapi"] = Field(description="An HTTP service described by OpenAPI.")
    document: FilePath = Field(description="Path or URL of the OpenAPI document.")
    server: UrlText = Field(description="URL of the service; servers in the document are ignored.")
    headers: HeadersSpec = Field({}, description="Fixed headers.")
    networks: ListOf[PrivateNetwork] = Field((), description=NETWORKS)

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from check_plain_credentials(self.headers, "headers")
        if PLAIN_HTTP.match(self.document) or (_SCHEME.match(self.document) and not _ADDRESS.match(self.document)):
            help = "write an https URL, or the path of a copy"
            yield RuleViolation(("document",), "the document must be fetched over https", help, code="bad-url")
        if "?" in self.server:
            yield RuleViolation(("server",), "the URL of a service has no query", "remove it", code="bad-url")


TransportSpec = Annotated[StreamableHttpTransport | StdioTransport | OpenApiTransport, Field(discriminator="type")]


class ImportSelectionSpec(SpecModel):
    """Selects operations of an OpenAPI document that match all given keys; within a key, any entry matches."""

    tags: ListOf[SingleLineText] = Field((), description="Tags, of which an operation must have one.")
    operation_ids: ListOf[SingleLineText] = Field(
        (), description="operationIds as the document writes them; * stands for any run of characters."
    )
    paths: ListOf[SingleLineText] = Field(
        (), description="Paths as the document writes them; * stands for any run of characters."
    )
    methods: ListOf[Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]] = Field((), description="HTTP methods.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if not (self.tags or self.operation_ids or self.paths or self.methods):
            yield RuleViolation((), "the selection is empty", "add tags, operationIds, paths or methods, or remove it")


class ResourceGroupSpec(SpecModel):
    """Resources of a server with one name for policies."""

    name: Name = Field(description="Name of the group; policies write resource:UPSTREAM.NAME.")
    uris: NonEmptyListOf[UriPattern] = Field(
        description="URIs, or patterns of them; * stands for any run of characters."
    )


class ImportedTools(SpecModel):
    """What imported tools can do."""

    flags: ListOf[Name] = Field(description="TrustFlags: what the tools can do; [] declares no effects.")


class ImportSpec(SpecModel):
    """What is imported, and with which settings."""

    include: NonEmptyListOf[NamePattern] = Field(description="Names or patterns of tools to import.")
    exclude: ListOf[NamePattern] = Field((), description="Names or patterns of tools to exclude again.")
    prompts: ListOf[NamePattern] = Field((), description="Names or patterns of prompts to import.")
    resources: ListOf[ResourceGroupSpec] = Field(
        (), description="Groups of resources that may be read; none if left out."
    )
    select: OptionalField[ImportSelectionSpec] = Field(
        None, description="Which operations of an OpenAPI document are imported."
    )
    trust: OptionalField[TrustSpec] = Field(
        None, description="Trust of imported tools without a Tool document, and of prompts and resources."
    )
    tools: dict[NamePattern, ImportedTools] = Field(
        {},
        description="Flags by name or pattern of imported tools. They replace trust.flags and the flags that the "
        "method of an operation implies; the pattern with the most literal characters applies.",
    )
    on_change: Literal["quarantine", "accept"] = Field(
        "quarantine", description="Whether a tool or prompt that differs from the lock file is quarantined or accepted."
    )
    output_schemas: Literal["promise", "ignore"] = Field(
        "promise",
        description="Whether output schemas of definitions are published to clients and enforced, or ignored.",
    )

    def check_rules(self) -> Iterable[RuleViolation]:
        names = [group.name for group in self.resources]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield RuleViolation(
                    ("resources", index, "name"), f"two groups have the name {name!r}", "rename one of them"
                )


class HealthSpec(SpecModel):
    """Health checks of the server."""

    every: Duration = Field(timedelta(seconds=30), description="Interval of probes.")
    fail_after: Annotated[int, Field(ge=1)] = Field(3, description="Failed probes after which the server is down.")


class DefinitionWaiverSpec(SpecModel):
    """A temporary exception for a finding in a definition."""

    finding: ReviewFindingCode = Field(description="Diagnostic code of the finding.")
    definition: NamePattern = Field(description="Name or pattern of the tools, prompts and templates.")
    until: Day = Field(description="Last day of the exception.")
    by: Name = Field(description="Person or team that allowed it.")
    because: Prose = Field(description="Reason for the exception.")


class DefinitionReviewSpec(SpecModel):
    """Review of the texts of definitions."""

    hosts: ListOf[HostPattern] = Field((), description="Hosts that the texts may mention, besides that of the server.")
    waivers: ListOf[DefinitionWaiverSpec] = Field((), description="Temporary exceptions for findings.")


class UpstreamSpec(SpecModel):
    """A server and what is imported from it."""

    transport: TransportSpec = Field(description="Connection to the server.")
    auth: OptionalField[UpstreamAuthSpec] = Field(None, description="Credentials for the server.")
    import_: ImportSpec = Field(description="What is imported, and with which settings.")
    review: OptionalField[DefinitionReviewSpec] = Field(None, description="Review of the texts of definitions.")
    limits: OptionalField[ToolLimitsSpec] = Field(None, description="Limits of a call of an imported tool.")
    health: OptionalField[HealthSpec] = Field(None, description="Health checks of the server.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if self.auth is not None and self.transport.type == "stdio":
            yield RuleViolation(("auth",), "a program takes no 'auth'", "use transport.env", at_key=True)
        if self.transport.type == "openapi":
            for field in ("prompts", "resources"):
                if getattr(self.import_, field):
                    yield RuleViolation(
                        ("import", field), f"an OpenAPI document has no {field}", "remove them", at_key=True
                    )
            return
        if self.auth is not None and self.auth.scheme in ("query", "cookie"):
            yield RuleViolation(
                ("auth", "scheme"), "an MCP server requires credentials in a header", "use bearer or header"
            )
        if self.import_.select is not None:
            help = "name tools in 'include' instead"
            yield RuleViolation(("import", "select"), "'select' applies only to OpenAPI documents", help, at_key=True)


class UpstreamDocument(DocumentModel):
    """A server whose tools are imported."""

    kind: Literal["Upstream"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: UpstreamSpec = Field(description="The server and what is imported from it.")
