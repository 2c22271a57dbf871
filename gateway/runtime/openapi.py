"""The backends of operations of OpenAPI documents: from an Upstream, a definition and perhaps a Tool document."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from ipaddress import ip_network
from typing import Any, Final

from gateway.backends import credentials
from gateway.backends.connections import Connections
from gateway.backends.http import HttpRequest
from gateway.backends.openapi import OpenApiBackend, OpenApiOperation, Proof
from gateway.backends.results import MediaTemplate
from gateway.config.linking.shaping import shaping_of
from gateway.config.specs.backends import OpenApiBackend as OpenApiBackendSpec
from gateway.config.specs.common import BasicAuth, BearerAuth, CookieAuth, HeaderAuth, QueryAuth
from gateway.config.specs.tools import ToolSpec
from gateway.config.specs.upstream_auth import ClientCredentialsAuth, TokenExchangeAuth, UpstreamAuth
from gateway.config.specs.upstreams import OpenApiTransport, UpstreamSpec
from gateway.core.media import MediaKind
from gateway.errors import ProgramError
from gateway.governance.ports import Backend
from gateway.governance.shaping import Shaping
from gateway.openapi.requests import request_from
from gateway.runtime.secrets import Secrets
from gateway.serving.asking import log_message
from gateway.serving.current import current_call
from gateway.serving.relayed import NEXT, Aside
from gateway.snapshot import DeclaredTool
from gateway.web.bodies import NotStrictJson, strict_json

_KINDS: Final[Mapping[str, MediaKind]] = {"image": "image", "audio": "audio", "video": "video"}


def operation_backend(
    tool: DeclaredTool,
    upstream: UpstreamSpec,
    spec: ToolSpec | None,
    *,
    secrets: Secrets,
    connections: Connections,
    proof: Proof | None = None,
) -> Backend:
    """Raises `ProgramError` for an operation that cannot be called here. `proof` is where tokens are granted."""
    transport = upstream.transport
    if tool.request is None or not isinstance(transport, OpenApiTransport):
        raise ProgramError("its operation is not known", help="run: gateway lock")
    try:
        request = request_from(tool.request["request"])
    except ValueError as error:
        raise ProgramError("its definition does not say what a call becomes", help="run: gateway lock") from error
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
    shaping = shaping_of(declared) if declared is not None else Shaping()
    return OpenApiBackend(OpenApiOperation(http, request, key, proof, _telling(tool, shaping)), connections)


def _telling(tool: DeclaredTool, shaping: Shaping) -> Callable[[Any], None]:
    """Tells callers of a next page in their own words: with their names for arguments, and none that are not theirs."""
    known = (tool.input_schema or {}).get("properties")
    properties: Mapping[str, Any] = known if isinstance(known, Mapping) else {}

    def tell(message: Any) -> None:
        named = {shaping.renamed.get(name, name): value for name, value in message["next"].items()}
        further = {name: _typed(value, properties[name]) for name, value in named.items() if name in properties}
        if further:
            log_message({**message, "next": further})
            current_call().aside = Aside(meta={NEXT: further})

    return tell


def _typed(value: str, schema: Any) -> Any:
    """A text of an address as the argument that it stands for."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind not in ("integer", "number", "boolean"):
        return value
    try:
        return strict_json(value.encode())
    except (NotStrictJson, UnicodeEncodeError):
        return value


def _credentials(
    auth: UpstreamAuth | None, secrets: Secrets
) -> tuple[credentials.Auth | None, credentials.QueryAuth | credentials.CookieAuth | None]:
    match auth:
        case BearerAuth(token=token):
            return credentials.BearerAuth(secrets.reader(token)), None
        case BasicAuth(username=username, password=password):
            return credentials.BasicAuth(username, secrets.reader(password)), None
        case HeaderAuth(name=name, value=value):
            return credentials.HeaderAuth(name, secrets.reader(value)), None
        case QueryAuth(name=name, value=value):
            return None, credentials.QueryAuth(name, secrets.reader(value))
        case CookieAuth(name=name, value=value):
            return None, credentials.CookieAuth(name, secrets.reader(value))
        case ClientCredentialsAuth() | TokenExchangeAuth() | None:
            return None, None


def _media(tool: DeclaredTool, spec: ToolSpec | None) -> MediaTemplate | None:
    """As a Tool document says, else as the OpenAPI document does; who vouches for it is the tier's to say."""
    given = spec.output.media if spec is not None and spec.output is not None else None
    if given is not None:
        kind = given.kind
        return MediaTemplate(kind, given.mime_type, given.filename, given.trust_tier, given.hazard, given.caption)
    answer: Mapping[str, Any] = (tool.request or {}).get("answer") or {}
    mime_type = answer.get("media")
    if not isinstance(mime_type, str) or mime_type.partition("/")[0] not in _KINDS:
        return None
    first, _, second = mime_type.partition("/")
    filename = f"{tool.remote_name}.{second}"
    return MediaTemplate(_KINDS[first], mime_type, filename, tool.trust.tier.origin, "opaque-perceptual")
