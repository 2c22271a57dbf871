"""The backend of each declared tool, from what its document says."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

from gateway.backends import credentials
from gateway.backends.addresses import Network
from gateway.backends.command import Command, CommandBackend
from gateway.backends.connections import Connections, system_lookup
from gateway.backends.http import FromArguments, HttpBackend, HttpRequest
from gateway.backends.pools import Lookup
from gateway.backends.processes import HostControls
from gateway.backends.promised import PromisedBackend
from gateway.backends.python import PythonBackend, PythonFunction
from gateway.backends.results import MediaTemplate
from gateway.config.linking.python_objects import Unusable, find_object
from gateway.config.specs import backends as specs
from gateway.config.specs.common import (
    Auth,
    BasicAuth,
    BearerAuth,
    CookieAuth,
    EnvValue,
    HeaderAuth,
    Limits,
    QueryAuth,
    Secret,
)
from gateway.config.specs.tools import MediaOutput, ToolSpec
from gateway.config.specs.upstream_auth import Granted, TokenExchangeAuth, UpstreamAuth
from gateway.config.specs.upstreams import Health as HealthSpec
from gateway.config.specs.upstreams import (
    OpenApiTransport,
    StdioTransport,
    StreamableHttpTransport,
    UpstreamDocument,
    UpstreamSpec,
)
from gateway.core.promises import Promise
from gateway.errors import GatewayError, ProgramError
from gateway.formats.jsondoc import SpooledJsonArtifact
from gateway.formats.paths import Path
from gateway.governance.ports import Backend
from gateway.runtime.openapi import operation_backend
from gateway.runtime.secrets import Secrets
from gateway.snapshot import DeclaredTool
from gateway.upstreams.assertions import Assertion
from gateway.upstreams.auth import Credentials, FixedCredentials, Grant, GrantedCredentials
from gateway.upstreams.backend import McpBackend, RemoteTool
from gateway.upstreams.connections import Connection
from gateway.upstreams.http import HttpConnection
from gateway.upstreams.programs import Program
from gateway.upstreams.registry import Health, Upstreams
from gateway.upstreams.sources import Sources
from gateway.upstreams.stdio import StdioConnection
from gateway.upstreams.wire import Endpoint


class Backends:
    """Makes backends. What the kernel lets us enforce is asked once."""

    def __init__(self, secrets: Secrets, packages: Collection[str], *, lookup: Lookup = system_lookup) -> None:
        self._secrets = secrets
        self._packages = packages
        self._host: HostControls | None = None
        self._connections = Connections(lookup=lookup)
        self._upstreams = Upstreams()
        self._sources = Sources(self._upstreams)
        self._declared: dict[str, UpstreamDocument] = {}
        self._earlier: Backends | None = None
        self._proofs: dict[str, Credentials] = {}

    def renewed(self) -> "Backends":
        """For the next revision: servers whose documents stay the same keep their connections."""
        renewed = Backends(self._secrets, self._packages)
        renewed._host, renewed._connections = self._host, self._connections
        renewed._upstreams = Upstreams(ids=self._upstreams.ids)
        renewed._sources, renewed._earlier = self._sources, self
        return renewed

    def come_into_force(self) -> None:
        """From now on this is what prompts and resources are had from; nothing before it is needed any more."""
        self._sources.move(self._upstreams)
        self._earlier = None

    @property
    def sources(self) -> Sources:
        """Prompts and resources of the servers that are in force."""
        return self._sources

    def of(self, tool: DeclaredTool, spec: ToolSpec, *, artifact: type) -> Backend:
        """Raises `ProgramError` for a backend that cannot work here."""
        schema = tool.input_schema or {"type": "object"}
        match spec.backend:
            case specs.PythonBackend() as declared:
                return self._python(declared, spec, schema=schema, artifact=artifact)
            case specs.CommandBackend() as declared:
                return self._command(declared, spec, schema=schema)
            case specs.HttpBackend() as declared:
                return self._http(declared, spec, artifact=artifact)
            case specs.McpBackend() as declared:
                json_results = issubclass(artifact, SpooledJsonArtifact)
                media = _media(spec.output.media if spec.output else None)
                timeout = _timeout(spec) or timedelta(seconds=60)
                promise = _promise(tool)
                remote = RemoteTool(
                    declared.tool, json_results, media, timeout=timeout, promise=promise, as_task=tool.as_task
                )
                return self._remote(remote, declared.upstream)
            case specs.OpenApiBackend():
                raise ProgramError("its operation is not known", help="run: gateway lock")

    def operation(self, tool: DeclaredTool, upstream: UpstreamSpec, spec: ToolSpec | None) -> Backend:
        """The backend of an operation of an OpenAPI document, declared or not."""
        name = tool.upstream or ""
        earlier = self._earlier
        if earlier is not None and name in earlier._proofs and self._is_kept(name):
            self._proofs.setdefault(name, earlier._proofs[name])
        if isinstance(upstream.auth, Granted) and name not in self._proofs:
            networks = upstream.transport.networks if isinstance(upstream.transport, OpenApiTransport) else ()
            self._proofs[name] = self._credentials(upstream.auth, tuple(map(ip_network, networks)))
        backend = operation_backend(
            tool,
            upstream,
            spec,
            secrets=self._secrets,
            connections=self._connections,
            proof=self._proofs.get(name),
        )
        promise = _promise(tool)
        return backend if promise is None else PromisedBackend(backend, promise)

    def of_import(self, tool: DeclaredTool, *, artifact: type, limits: Limits | None = None) -> Backend:
        """The backend of a tool that an upstream brings. Raises `ProgramError` where there is no way to it."""
        json_results = issubclass(artifact, SpooledJsonArtifact)
        timeout = (limits.timeout if limits else None) or timedelta(seconds=60)
        remote = RemoteTool(
            tool.remote_name or tool.name, json_results, timeout=timeout, promise=_promise(tool), as_task=tool.as_task
        )
        return self._remote(remote, tool.upstream or "")

    def _remote(self, tool: RemoteTool, upstream: str) -> Backend:
        connection = self._upstreams.get(upstream)
        if connection is None:
            raise ProgramError(self._upstreams.reason(upstream), help="run: gateway upstreams")
        return McpBackend(tool, connection)

    def _python(
        self, declared: specs.PythonBackend, spec: ToolSpec, *, schema: Mapping[str, Any], artifact: type
    ) -> Backend:
        found = find_object(declared.entrypoint, packages=self._packages)
        if isinstance(found, Unusable):
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

    def _command(self, declared: specs.CommandBackend, spec: ToolSpec, *, schema: Mapping[str, Any]) -> Backend:
        sandbox = declared.sandbox or specs.Sandbox.model_construct()
        exits = declared.exit or specs.Exit.model_construct()
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

    def _http(self, declared: specs.HttpBackend, spec: ToolSpec, *, artifact: type) -> Backend:
        request = HttpRequest(
            declared.method,
            declared.url,
            headers=dict(declared.headers),
            query=FromArguments(declared.query.only) if declared.query else None,
            body=FromArguments(declared.body.only) if declared.body else None,
            auth=auth_of(declared.auth, self._secrets),
            networks=tuple(map(ip_network, declared.networks)),
            pick=_picking(declared.pick),
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
    def connections(self) -> Connections:
        """The sessions that everything here shares."""
        return self._connections

    @property
    def upstreams(self) -> Upstreams:
        """The servers whose tools are called here."""
        return self._upstreams

    def connect(self, documents: Iterable[UpstreamDocument]) -> None:
        """Make a connection to each MCP server, without reaching for it yet."""
        for document in documents:
            name = document.metadata.name
            self._declared[name] = document
            earlier = self._earlier
            if earlier is not None and self._is_kept(name) and earlier.upstreams.get(name) is not None:
                self._upstreams.keep(earlier.upstreams, name)
                continue
            try:
                connection = self._connection(document)
            except GatewayError as error:
                self._upstreams.leave_out(name, error.message)
            else:
                if connection is not None:
                    self._upstreams.add(connection, _health(document.spec.health))

    def _is_kept(self, name: str) -> bool:
        """Whether a server is declared as it was before. Secrets are read when they are needed: they are the same."""
        earlier = self._earlier
        return earlier is not None and earlier._declared.get(name) == self._declared.get(name)

    def _connection(self, document: UpstreamDocument) -> Connection | None:
        name, spec = document.metadata.name, document.spec
        ids = self._upstreams.ids
        match spec.transport:
            case StreamableHttpTransport() as http:
                endpoint = Endpoint(http.url, dict(http.headers), tuple(map(ip_network, http.networks)))
                proof = self._credentials(spec.auth, endpoint.networks)
                return HttpConnection(name, endpoint, self._connections, ids=ids, credentials=proof)
            case StdioTransport() as stdio:
                return StdioConnection(name, self._program(stdio), self._controls, ids=ids)
            case _:
                return None

    def _credentials(self, auth: UpstreamAuth | None, networks: tuple[Network, ...]) -> Credentials:
        if not isinstance(auth, Granted):
            return FixedCredentials(auth_of(auth, self._secrets))
        says = self._asserted(auth) if isinstance(auth, TokenExchangeAuth) else None
        grant = Grant(
            auth.token_url,
            auth.client_id,
            self._secrets.reader(auth.client_secret),
            sent_as=auth.send,
            scopes=auth.scopes,
            audience=auth.audience,
            resource=auth.resource,
            networks=networks,
            assert_caller=None if says is None else says.of,
        )
        return GrantedCredentials(grant)

    def _asserted(self, auth: TokenExchangeAuth) -> Assertion:
        given = auth.assertion
        key = self._secrets.reader(given.key)
        return Assertion(given.issuer, given.audience or auth.token_url, given.algorithm, key)

    def _program(self, stdio: StdioTransport) -> Program:
        sandbox = stdio.sandbox or specs.Sandbox.model_construct()
        return Program(
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
        """Asking the kernel costs a process, so it is asked when somebody needs to know, once."""
        self._host = self._host or HostControls.of_this_host()
        return self._host

    def _value(self, value: EnvValue) -> str | Callable[[], str]:
        return self._secrets.reader(value) if isinstance(value, Secret) else value


def auth_of(auth: Auth | QueryAuth | CookieAuth | None, secrets: Secrets) -> credentials.Auth | None:
    """How a document says that we prove who we are; secrets are read when they are needed."""
    match auth:
        case BearerAuth(token=token):
            return credentials.BearerAuth(secrets.reader(token))
        case BasicAuth(username=username, password=password):
            return credentials.BasicAuth(username, secrets.reader(password))
        case HeaderAuth(name=name, value=value):
            return credentials.HeaderAuth(name, secrets.reader(value))
        case QueryAuth() | CookieAuth():
            raise ProgramError("an MCP server takes credentials in a header", help="use bearer or header")
        case None:
            return None


def _health(spec: HealthSpec | None) -> Health:
    return Health() if spec is None else Health(spec.every.total_seconds(), spec.fail_after)


def _picking(path: str | None) -> Callable[[Any], Any] | None:
    """Takes what a JSONPath finds out of an answer: the value, or several as a list."""
    if path is None:
        return None
    compiled = Path(path)

    def pick(answer: Any) -> Any:
        found = compiled.values([answer])
        if not found:
            raise LookupError(f"the answer has nothing at {path}")
        return found[0] if len(found) == 1 else found

    return pick


def _promise(tool: DeclaredTool) -> Promise | None:
    return None if tool.brought_output is None else Promise(tool.brought_output)


def _timeout(spec: ToolSpec) -> timedelta | None:
    return spec.limits.timeout if spec.limits else None


def _media(output: MediaOutput | None) -> MediaTemplate | None:
    if output is None:
        return None
    return MediaTemplate(
        output.kind, output.mime_type, output.filename, output.trust_tier, output.hazard, output.caption
    )
