"""Upstream: a server whose tools are imported, and on which terms."""

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import Field

from gateway.config.specs.backends import NETWORKS, Argument, Sandbox, program_problems
from gateway.config.specs.base import Broken, Many, Maybe, Some, Spec
from gateway.config.specs.common import Document, Env, Headers, Limits, OwnedMetadata, Trust, credentials_as_text
from gateway.config.specs.scalars import (
    AbsolutePath,
    Day,
    Duration,
    FilePath,
    Line,
    Name,
    Pattern,
    PrivateNetwork,
    Prose,
    Text,
    Url,
)
from gateway.config.specs.upstream_auth import UpstreamAuth

Finding = Literal[
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
    Text(
        "a host",
        "write a name of a host, or a pattern: docs.example.com, *.example.com",
        r"(?:\*\.)?[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){0,16}",
        code="bad-name",
    ),
]


UriPattern = Annotated[
    str,
    Text(
        "a URI",
        "write a URI with its scheme, in which '*' stands for any run of characters: file:///notes/*",
        r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\x00-\x20*]*(?:\*[^\s\x00-\x20*]*)*",
        code="bad-url",
    ),
]


_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ADDRESS: Final = re.compile(r"https?://", re.IGNORECASE)
PLAIN_HTTP: Final = re.compile(r"http://(?!(?:localhost|127\.[0-9.]+|\[::1\])(?:[:/]|$))", re.IGNORECASE)
"""An address beyond this machine that is spoken to in clear."""


class StreamableHttpTransport(Spec):
    """An MCP server over HTTP."""

    type: Literal["streamable-http"] = Field(description="An MCP server over HTTP.")
    url: Url = Field(description="Address of the server's endpoint.")
    headers: Headers = Field({}, description="Fixed headers.")
    networks: Many[PrivateNetwork] = Field((), description=NETWORKS)

    def broken_rules(self) -> Iterable[Broken]:
        yield from credentials_as_text(self.headers, "headers")


class StdioTransport(Spec):
    """An MCP server that the gateway starts as a program."""

    type: Literal["stdio"] = Field(description="An MCP server started as a program.")
    argv: Some[Argument] = Field(description="Program, by its absolute path, and arguments.")
    env: Env = Field({}, description="The whole environment of the program.")
    workdir: Maybe[AbsolutePath] = Field(None, description="Folder it starts in.")
    sandbox: Maybe[Sandbox] = Field(None, description="What it may use.")

    def broken_rules(self) -> Iterable[Broken]:
        yield from program_problems(self.argv)


class OpenApiTransport(Spec):
    """An HTTP service described by OpenAPI; each operation becomes a tool."""

    type: Literal["openapi"] = Field(description="An HTTP service described by OpenAPI.")
    document: FilePath = Field(description="Path or address of the OpenAPI document.")
    server: Url = Field(description="Address of the service; what the document says about it is not used.")
    headers: Headers = Field({}, description="Fixed headers.")
    networks: Many[PrivateNetwork] = Field((), description=NETWORKS)

    def broken_rules(self) -> Iterable[Broken]:
        yield from credentials_as_text(self.headers, "headers")
        if PLAIN_HTTP.match(self.document) or (_SCHEME.match(self.document) and not _ADDRESS.match(self.document)):
            help = "write its https address, or the path of a copy"
            yield Broken(("document",), "a document is fetched over https", help, code="bad-url")
        if "?" in self.server:
            yield Broken(("server",), "the address of a service has no query", "remove it", code="bad-url")


Transport = Annotated[StreamableHttpTransport | StdioTransport | OpenApiTransport, Field(discriminator="type")]


class Select(Spec):
    """Narrows down the operations of an OpenAPI document: all given keys must hold; within a key, any entry."""

    tags: Many[Line] = Field((), description="Tags, of which an operation carries one.")
    operation_ids: Many[Line] = Field(
        (), description="operationIds as the document writes them; * stands for any run of characters."
    )
    paths: Many[Line] = Field((), description="Paths as the document writes them; * stands for any run of characters.")
    methods: Many[Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]] = Field((), description="HTTP methods.")

    def broken_rules(self) -> Iterable[Broken]:
        if not (self.tags or self.operation_ids or self.paths or self.methods):
            yield Broken((), "nothing is selected", "name tags, operationIds, paths or methods, or remove it")


class ResourceGroup(Spec):
    """Resources of a server that policies know by one name."""

    name: Name = Field(description="What policies call them: resource:UPSTREAM.NAME.")
    uris: Some[UriPattern] = Field(description="URIs, or patterns of them; * stands for any run of characters.")


class ImportedTools(Spec):
    """What tools of an upstream can do."""

    flags: Many[Name] = Field(description="TrustFlags: what they can do; [] declares no effects.")


class Import(Spec):
    """What is imported, and on which terms."""

    include: Some[Pattern] = Field(description="Names or patterns of tools to import.")
    exclude: Many[Pattern] = Field((), description="Names or patterns to leave out again.")
    prompts: Many[Pattern] = Field((), description="Names or patterns of prompts to import.")
    resources: Many[ResourceGroup] = Field((), description="Resources that may be read, in groups; none without one.")
    select: Maybe[Select] = Field(None, description="Which operations of an OpenAPI document are looked at.")
    trust: Maybe[Trust] = Field(None, description="Trust of everything imported that no Tool document declares.")
    tools: dict[Pattern, ImportedTools] = Field(
        {},
        description="Flags by name or pattern of the imported tools, in place of trust.flags and of what the method of "
        "an operation implies; the pattern with the most letters counts.",
    )
    on_change: Literal["quarantine", "accept"] = Field(
        "quarantine", description="What happens to a tool or prompt whose definition differs from the lock file."
    )
    output_schemas: Literal["promise", "ignore"] = Field(
        "promise", description="Whether clients are promised what definitions say of results, which are checked then."
    )

    def broken_rules(self) -> Iterable[Broken]:
        names = [group.name for group in self.resources]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield Broken(("resources", index, "name"), f"two groups are called {name!r}", "rename one of them")


class Health(Spec):
    """How the server is watched."""

    every: Duration = Field(timedelta(seconds=30), description="Time between two probes.")
    fail_after: Annotated[int, Field(ge=1)] = Field(3, description="Failed probes after which it counts as down.")


class DefinitionWaiver(Spec):
    """A finding in a definition that somebody bears, up to a last day."""

    finding: Finding = Field(description="The diagnostic code of the finding.")
    definition: Pattern = Field(description="Name or pattern of the tools, prompts and templates it is found in.")
    until: Day = Field(description="Last day of the exception.")
    by: Name = Field(description="Who allowed it.")
    because: Prose = Field(description="Why it is bearable.")


class DefinitionReview(Spec):
    """How the texts of definitions are looked at."""

    hosts: Many[HostPattern] = Field((), description="Hosts that they may speak of, besides the server's own.")
    waivers: Many[DefinitionWaiver] = Field((), description="Findings that are borne for a time.")


class UpstreamSpec(Spec):
    """A server and what is taken from it."""

    transport: Transport = Field(description="How the server is reached.")
    auth: Maybe[UpstreamAuth] = Field(None, description="Credentials for the server.")
    import_: Import = Field(description="Which tools are imported, and on which terms.")
    review: Maybe[DefinitionReview] = Field(None, description="How the texts of definitions are looked at.")
    limits: Maybe[Limits] = Field(None, description="What a call of an imported tool may cost.")
    health: Maybe[Health] = Field(None, description="How the server is watched.")

    def broken_rules(self) -> Iterable[Broken]:
        if self.auth is not None and self.transport.type == "stdio":
            yield Broken(("auth",), "a program takes no credentials", "give them in transport.env", at_key=True)
        if self.transport.type == "openapi":
            for field in ("prompts", "resources"):
                if getattr(self.import_, field):
                    yield Broken(("import", field), f"an OpenAPI document has no {field}", "remove them", at_key=True)
            return
        if self.auth is not None and self.auth.scheme in ("query", "cookie"):
            yield Broken(("auth", "scheme"), "an MCP server takes credentials in a header", "use bearer or header")
        if self.import_.select is not None:
            help = "name tools in 'include' instead"
            yield Broken(("import", "select"), "only operations of an OpenAPI document are selected", help, at_key=True)


class UpstreamDocument(Document):
    """A server whose tools are imported."""

    kind: Literal["Upstream"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Who the document is and who answers for it.")
    spec: UpstreamSpec = Field(description="The server and what is taken from it.")
