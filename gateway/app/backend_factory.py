"""Build the backend of each declared tool from its document."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from gateway.app.openapi_backend import build_openapi_backend
from gateway.app.secrets import Secrets
from gateway.artifacts import JsonPath, SpooledJsonArtifact
from gateway.backends import (
    ArgumentSelection,
    AssertionSigner,
    Auth,
    BasicAuth,
    BearerAuth,
    Command,
    CommandBackend,
    HeaderAuth,
    HealthPolicy,
    HostControls,
    HttpBackend,
    HttpRequest,
    McpBackend,
    MediaTemplate,
    OAuthCredentials,
    OutputCheckBackend,
    PythonBackend,
    PythonFunction,
    RemoteTool,
    ServerProgram,
    StaticCredentials,
    StdioConnection,
    StreamableHttpConnection,
    TokenGrant,
    UpstreamConnection,
    UpstreamCredentials,
    UpstreamEndpoint,
    UpstreamResources,
    Upstreams,
)
from gateway.config import (
    AuthSpec,
    BasicAuthSpec,
    BearerAuthSpec,
    CommandBackendSpec,
    ConfigDocuments,
    CookieAuthSpec,
    EnvValue,
    ExitCodesSpec,
    GrantedAuthSpec,
    HeaderAuthSpec,
    HttpBackendSpec,
    McpBackendSpec,
    MediaOutputSpec,
    OpenApiBackendSpec,
    OpenApiTransport,
    PythonBackendSpec,
    QueryAuthSpec,
    SandboxSpec,
    SecretSpec,
    StdioTransport,
    StreamableHttpTransport,
    TokenExchangeAuth,
    ToolLimitsSpec,
    ToolSpec,
    UnusableObject,
    UpstreamAuthSpec,
    UpstreamBackendSpec,
    UpstreamDocument,
    UpstreamSpec,
    build_argument_mapping,
    import_object,
)
from gateway.config import HealthSpec as HealthSpec
from gateway.errors import GatewayError, ProgramError
from gateway.http_client import HttpConnections, Network, ResolveHost, resolve_host
from gateway.model import Backend, Invocation, OutputSchema
from gateway.registries import ArgumentMapping, DeclaredTool


@asynccontextmanager
async def open_upstreams(
    loaded: ConfigDocuments, *, environ: Mapping[str, str], folder: Path
) -> AsyncIterator[Upstreams]:
    """Open connections to the declared MCP servers, and close them at the end. `folder` holds the documents."""
    backends = BackendFactory(Secrets(environ, folder), ())
    try:
        backends.connect(each.spec for each in loaded.documents if isinstance(each.spec, UpstreamDocument))
        yield backends.upstreams
    finally:
        await backends.close()


async def probe_upstreams(
    loaded: ConfigDocuments, *, environ: Mapping[str, str], folder: Path
) -> list[Mapping[str, Any]]:
    """Probe all servers at once, and return the status of each."""
    async with open_upstreams(loaded, environ=environ, folder=folder) as upstreams:
        await asyncio.gather(*(upstreams.probe(each.name) for each in upstreams))
        return upstreams.status()


class ArgumentMappingBackend:
    """Backend that maps the arguments of callers to those of the upstream."""

    def __init__(self, inner: Backend, mapping: ArgumentMapping) -> None:
        self._inner = inner
        self._mapping = mapping

    async def run(self, call: Invocation) -> Any:
        return await self._inner.run(replace(call, args=self._mapping.to_upstream(call.args)))

    async def close(self) -> None:
        await self._inner.close()


class BackendFactory:
    """Factory of the backends and upstream connections of one revision."""

    def __init__(self, secrets: Secrets, packages: Collection[str], *, lookup: ResolveHost = resolve_host) -> None:
        self._secrets = secrets
        self._packages = packages
        self._host: HostControls | None = None
        self._connections = HttpConnections(lookup=lookup)
        self._upstreams = Upstreams()
        self._sources = UpstreamResources(self._upstreams)
        self._declared: dict[str, UpstreamDocument] = {}
        self._earlier: BackendFactory | None = None
        self._proofs: dict[str, UpstreamCredentials] = {}

    def for_next_revision(self) -> "BackendFactory":
        """Return the factory of the next revision. Servers whose documents stay the same keep their connections."""
        factory = BackendFactory(self._secrets, self._packages)
        factory._host, factory._connections = self._host, self._connections
        factory._upstreams = Upstreams(ids=self._upstreams.ids)
        factory._sources, factory._earlier = self._sources, self
        return factory

    def activate(self) -> None:
        """Serve prompts and resources from these upstreams, and drop the earlier factory."""
        self._sources.switch_registry(self._upstreams)
        self._earlier = None

    @property
    def sources(self) -> UpstreamResources:
        return self._sources

    def build(self, tool: DeclaredTool, spec: ToolSpec, *, artifact: type) -> Backend:
        """Build the backend of a declared tool. Raises `ProgramError` if it cannot work here."""
        schema = tool.input_schema or {"type": "object"}
        match spec.backend:
            case PythonBackendSpec() as declared:
                return self._build_python(declared, spec, schema=schema, artifact=artifact)
            case CommandBackendSpec() as declared:
                return self._build_command(declared, spec, schema=schema)
            case HttpBackendSpec() as declared:
                return self._build_http(declared, spec, artifact=artifact)
            case McpBackendSpec() as declared:
                json_results = issubclass(artifact, SpooledJsonArtifact)
                media = _media(spec.output.media if spec.output else None)
                timeout = _timeout(spec) or timedelta(seconds=60)
                promise = _promise(tool)
                remote = RemoteTool(
                    declared.tool, json_results, media, timeout=timeout, promise=promise, as_task=tool.as_task
                )
                return _map_arguments(self._build_remote(remote, declared.upstream), spec)
            case OpenApiBackendSpec():
                raise ProgramError("its operation is not known", help="run: gateway lock")

    def build_operation(self, tool: DeclaredTool, upstream: UpstreamSpec, spec: ToolSpec | None) -> Backend:
        """Build the backend of an OpenAPI operation, with or without a Tool document."""
        name = tool.upstream or ""
        earlier = self._earlier
        if earlier is not None and name in earlier._proofs and self._is_unchanged(name):
            self._proofs.setdefault(name, earlier._proofs[name])
        if isinstance(upstream.auth, GrantedAuthSpec) and name not in self._proofs:
            networks = upstream.transport.networks if isinstance(upstream.transport, OpenApiTransport) else ()
            self._proofs[name] = self._credentials(upstream.auth, tuple(map(ip_network, networks)))
        backend = build_openapi_backend(
            tool,
            upstream,
            spec,
            secrets=self._secrets,
            connections=self._connections,
            proof=self._proofs.get(name),
        )
        promise = _promise(tool)
        return _map_arguments(backend if promise is None else OutputCheckBackend(backend, promise), spec)

    def build_imported(self, tool: DeclaredTool, *, artifact: type, limits: ToolLimitsSpec | None = None) -> Backend:
        """Build the backend of an imported tool. Raises `ProgramError` if its upstream is unavailable."""
        json_results = issubclass(artifact, SpooledJsonArtifact)
        timeout = (limits.timeout if limits else None) or timedelta(seconds=60)
        remote = RemoteTool(
            tool.remote_name or tool.name, json_results, timeout=timeout, promise=_promise(tool), as_task=tool.as_task
        )
        return self._build_remote(remote, tool.upstream or "")

    def _build_remote(self, tool: RemoteTool, upstream: str) -> Backend:
        connection = self._upstreams.get(upstream)
        if connection is None:
            raise ProgramError(self._upstreams.get_unavailable_reason(upstream), help="run: gateway upstreams")
        return McpBackend(tool, connection)

    def _build_python(
        self, declared: PythonBackendSpec, spec: ToolSpec, *, schema: Mapping[str, Any], artifact: type
    ) -> Backend:
        found = import_object(declared.entrypoint, packages=self._packages)
        if isinstance(found, UnusableObject):
            raise ProgramError(found.message, help=found.help)
        function = PythonFunction(
            found,
            declared.run,
            schema=schema,
            json_results=issubclass(artifact, SpooledJsonArtifact),
            media=_media(spec.output.media if spec.output else None),
            timeout=_timeout(spec),
            parallel=(spec.limits.concurrent if spec.limits else None) or 4,
        )
        return PythonBackend(function)

    def _build_command(self, declared: CommandBackendSpec, spec: ToolSpec, *, schema: Mapping[str, Any]) -> Backend:
        sandbox = declared.sandbox or SandboxSpec.model_construct()
        exits = declared.exit or ExitCodesSpec.model_construct()
        command = Command(
            declared.argv,
            schema,
            {name: self._value(value) for name, value in declared.env.items()},
            folder=declared.workdir,
            output=declared.output,
            ok=exits.ok,
            failed=exits.failed,
            network=sandbox.network,
            readable=sandbox.readable,
            writable=sandbox.writable,
            cpu=sandbox.cpu or timedelta(seconds=60),
            memory=sandbox.memory or 1 << 30,
            media=_media(spec.output.media if spec.output else None),
            timeout=_timeout(spec) or timedelta(seconds=60),
        )
        return CommandBackend(command, self._controls)

    def _build_http(self, declared: HttpBackendSpec, spec: ToolSpec, *, artifact: type) -> Backend:
        request = HttpRequest(
            declared.method,
            declared.url,
            headers=dict(declared.headers),
            query=ArgumentSelection(declared.query.only) if declared.query else None,
            body=ArgumentSelection(declared.body.only) if declared.body else None,
            auth=build_auth(declared.auth, self._secrets),
            networks=tuple(map(ip_network, declared.networks)),
            pick=_compile_pick(declared.pick),
            json_results=issubclass(artifact, SpooledJsonArtifact),
            errors=dict(declared.errors),
            media=_media(spec.output.media if spec.output else None),
            timeout=_timeout(spec) or timedelta(seconds=60),
        )
        return HttpBackend(request, self._connections)

    async def close(self) -> None:
        await self._upstreams.close()
        await self._connections.close()

    @property
    def connections(self) -> HttpConnections:
        """The HTTP sessions that all backends share."""
        return self._connections

    @property
    def upstreams(self) -> Upstreams:
        return self._upstreams

    def connect(self, documents: Iterable[UpstreamDocument]) -> None:
        """Create a connection to each MCP server; none is opened yet."""
        for document in documents:
            name = document.metadata.name
            self._declared[name] = document
            earlier = self._earlier
            if earlier is not None and self._is_unchanged(name) and earlier.upstreams.get(name) is not None:
                self._upstreams.adopt(earlier.upstreams, name)
                continue
            try:
                connection = self._build_connection(document)
            except GatewayError as error:
                self._upstreams.mark_unavailable(name, error.message)
            else:
                if connection is not None:
                    self._upstreams.add(connection, _health(document.spec.health))

    def _is_unchanged(self, name: str) -> bool:
        """Whether the document of a server is the same as before. Secrets do not count: they are read when needed."""
        earlier = self._earlier
        return earlier is not None and earlier._declared.get(name) == self._declared.get(name)

    def _build_connection(self, document: UpstreamDocument) -> UpstreamConnection | None:
        name, spec = document.metadata.name, document.spec
        ids = self._upstreams.ids
        match spec.transport:
            case StreamableHttpTransport() as http:
                endpoint = UpstreamEndpoint(http.url, dict(http.headers), tuple(map(ip_network, http.networks)))
                proof = self._credentials(spec.auth, endpoint.networks)
                return StreamableHttpConnection(name, endpoint, self._connections, ids=ids, credentials=proof)
            case StdioTransport() as stdio:
                return StdioConnection(name, self._program(stdio), self._controls, ids=ids)
            case _:
                return None

    def _credentials(self, auth: UpstreamAuthSpec | None, networks: tuple[Network, ...]) -> UpstreamCredentials:
        if not isinstance(auth, GrantedAuthSpec):
            return StaticCredentials(build_auth(auth, self._secrets))
        signer = self._build_signer(auth) if isinstance(auth, TokenExchangeAuth) else None
        grant = TokenGrant(
            auth.token_url,
            auth.client_id,
            self._secrets.reader(auth.client_secret),
            sent_as=auth.send,
            scopes=auth.scopes,
            audience=auth.audience,
            resource=auth.resource,
            networks=networks,
            assert_caller=None if signer is None else signer.sign,
        )
        return OAuthCredentials(grant)

    def _build_signer(self, auth: TokenExchangeAuth) -> AssertionSigner:
        assertion = auth.assertion
        key = self._secrets.reader(assertion.key)
        return AssertionSigner(assertion.issuer, assertion.audience or auth.token_url, assertion.algorithm, key)

    def _program(self, stdio: StdioTransport) -> ServerProgram:
        sandbox = stdio.sandbox or SandboxSpec.model_construct()
        return ServerProgram(
            stdio.argv,
            {name: self._value(value) for name, value in stdio.env.items()},
            folder=stdio.workdir,
            network=sandbox.network,
            readable=sandbox.readable,
            writable=sandbox.writable,
            cpu=sandbox.cpu,
            memory=sandbox.memory,
        )

    @property
    def _controls(self) -> HostControls:
        """The sandbox features of the kernel. Detecting them starts a process, so it is done once, when needed."""
        self._host = self._host or HostControls.detect()
        return self._host

    def _value(self, value: EnvValue) -> str | Callable[[], str]:
        return self._secrets.reader(value) if isinstance(value, SecretSpec) else value


def _map_arguments(backend: Backend, spec: ToolSpec | None) -> Backend:
    """Return the backend with the argument mapping of its document, if it has one."""
    declared = spec.backend if spec is not None else None
    mapping = build_argument_mapping(declared) if isinstance(declared, UpstreamBackendSpec) else None
    return ArgumentMappingBackend(backend, mapping) if mapping else backend


def build_auth(auth: AuthSpec | QueryAuthSpec | CookieAuthSpec | None, secrets: Secrets) -> Auth | None:
    """Build the credentials that a document declares; secrets are read when needed."""
    match auth:
        case BearerAuthSpec(token=token):
            return BearerAuth(secrets.reader(token))
        case BasicAuthSpec(username=username, password=password):
            return BasicAuth(username, secrets.reader(password))
        case HeaderAuthSpec(name=name, value=value):
            return HeaderAuth(name, secrets.reader(value))
        case QueryAuthSpec() | CookieAuthSpec():
            raise ProgramError("an MCP server takes credentials in a header", help="use bearer or header")
        case None:
            return None


def _health(spec: HealthSpec | None) -> HealthPolicy:
    return HealthPolicy() if spec is None else HealthPolicy(spec.every.total_seconds(), spec.fail_after)


def _compile_pick(path: str | None) -> Callable[[Any], Any] | None:
    """Return a function that selects the value at a JSONPath, or several values as a list."""
    if path is None:
        return None
    compiled = JsonPath(path)

    def pick(answer: Any) -> Any:
        found = compiled.values([answer])
        if not found:
            raise LookupError(f"the response has no value at {path}")
        return found[0] if len(found) == 1 else found

    return pick


def _promise(tool: DeclaredTool) -> OutputSchema | None:
    return None if tool.upstream_output_schema is None else OutputSchema(tool.upstream_output_schema)


def _timeout(spec: ToolSpec) -> timedelta | None:
    return spec.limits.timeout if spec.limits else None


def _media(output: MediaOutputSpec | None) -> MediaTemplate | None:
    if output is None:
        return None
    return MediaTemplate(
        output.kind, output.mime_type, output.filename, output.trust_tier, output.hazard, output.caption
    )
