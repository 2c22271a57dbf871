"""Build the backends of OpenAPI operations from an Upstream, a definition and perhaps a Tool document."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from ipaddress import ip_network
from typing import Any, Final

from gateway.app.secrets import Secrets
from gateway.backends import (
    Auth,
    BasicAuth,
    BearerAuth,
    CookieAuth,
    HeaderAuth,
    HttpRequest,
    MediaTemplate,
    OpenApiBackend,
    OpenApiOperation,
    QueryAuth,
    TokenSource,
    parse_request,
)
from gateway.config import (
    BasicAuthSpec,
    BearerAuthSpec,
    ClientCredentialsAuth,
    CookieAuthSpec,
    HeaderAuthSpec,
    OpenApiTransport,
    QueryAuthSpec,
    TokenExchangeAuth,
    ToolSpec,
    UpstreamAuthSpec,
    UpstreamSpec,
    build_argument_mapping,
)
from gateway.config import OpenApiBackendSpec as OpenApiBackendSpec
from gateway.engine import get_current_call, log_message
from gateway.errors import ProgramError
from gateway.http_client import HttpConnections
from gateway.mcp import NEXT_PAGE_META
from gateway.model import Backend, MediaKind, UpstreamMeta
from gateway.registries import ArgumentMapping, DeclaredTool
from gateway.server import NotStrictJson, strict_json

_KINDS: Final[Mapping[str, MediaKind]] = {"image": "image", "audio": "audio", "video": "video"}


def build_openapi_backend(
    tool: DeclaredTool,
    upstream: UpstreamSpec,
    spec: ToolSpec | None,
    *,
    secrets: Secrets,
    connections: HttpConnections,
    proof: TokenSource | None = None,
) -> Backend:
    """Build a backend. Raises `ProgramError` for an operation that cannot be called. `proof` grants tokens."""
    transport = upstream.transport
    if tool.request is None or not isinstance(transport, OpenApiTransport):
        raise ProgramError("its operation is not known", help="run: gateway lock")
    try:
        request = parse_request(tool.request["request"])
    except ValueError as error:
        raise ProgramError("its definition does not describe the HTTP request", help="run: gateway lock") from error
    declared = spec.backend if spec is not None and isinstance(spec.backend, OpenApiBackendSpec) else None
    limits = (spec.limits if spec is not None else None) or upstream.limits
    auth, key = _credentials(upstream.auth, secrets)
    http = HttpRequest(
        request.method,
        transport.server,
        headers={**transport.headers, **(declared.headers if declared else {})},
        auth=auth,
        networks=tuple(map(ip_network, transport.networks)),
        errors=dict(declared.errors) if declared else {},
        media=_media(tool, spec),
        timeout=(limits.timeout if limits else None) or timedelta(seconds=60),
    )
    shaping = build_argument_mapping(declared) if declared is not None else ArgumentMapping()
    return OpenApiBackend(OpenApiOperation(http, request, key, proof, _page_reporter(tool, shaping)), connections)


def _page_reporter(tool: DeclaredTool, shaping: ArgumentMapping) -> Callable[[Any], None]:
    """Return a function that reports a next page to the caller, with the arguments of the tool only."""
    known = (tool.input_schema or {}).get("properties")
    properties: Mapping[str, Any] = known if isinstance(known, Mapping) else {}

    def report(message: Any) -> None:
        named = {shaping.renamed.get(name, name): value for name, value in message["next"].items()}
        further = {name: _convert(value, properties[name]) for name, value in named.items() if name in properties}
        if further:
            log_message({**message, "next": further})
            get_current_call().aside = UpstreamMeta(meta={NEXT_PAGE_META: further})

    return report


def _convert(value: str, schema: Any) -> Any:
    """Convert text of a URL to the type of its argument."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind not in ("integer", "number", "boolean"):
        return value
    try:
        return strict_json(value.encode())
    except (NotStrictJson, UnicodeEncodeError):
        return value


def _credentials(auth: UpstreamAuthSpec | None, secrets: Secrets) -> tuple[Auth | None, QueryAuth | CookieAuth | None]:
    match auth:
        case BearerAuthSpec(token=token):
            return BearerAuth(secrets.reader(token)), None
        case BasicAuthSpec(username=username, password=password):
            return BasicAuth(username, secrets.reader(password)), None
        case HeaderAuthSpec(name=name, value=value):
            return HeaderAuth(name, secrets.reader(value)), None
        case QueryAuthSpec(name=name, value=value):
            return None, QueryAuth(name, secrets.reader(value))
        case CookieAuthSpec(name=name, value=value):
            return None, CookieAuth(name, secrets.reader(value))
        case ClientCredentialsAuth() | TokenExchangeAuth() | None:
            return None, None


def _media(tool: DeclaredTool, spec: ToolSpec | None) -> MediaTemplate | None:
    """Return the media of a result from the Tool document, else from the OpenAPI document with the tool's tier."""
    media = spec.output.media if spec is not None and spec.output is not None else None
    if media is not None:
        kind = media.kind
        return MediaTemplate(kind, media.mime_type, media.filename, media.trust_tier, media.hazard, media.caption)
    answer: Mapping[str, Any] = (tool.request or {}).get("answer") or {}
    mime_type = answer.get("media")
    if not isinstance(mime_type, str) or mime_type.partition("/")[0] not in _KINDS:
        return None
    first, _, second = mime_type.partition("/")
    filename = f"{tool.remote_name}.{second}"
    return MediaTemplate(_KINDS[first], mime_type, filename, tool.trust.tier.origin, "opaque-perceptual")
