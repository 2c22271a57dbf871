"""HTTP in front of the engine: listener, MCP, REST, admin.

May import `approvals`, `artifacts`, `engine`, `mcp`, `model`, `policy`, `registries`, `storage` and `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.server.admin.routes import METRICS_PATH, metrics_routes, reload_routes, status_routes
    from gateway.server.http.admission import AdmissionControl, AdmissionMeter
    from gateway.server.http.asgi import (
        SCOPE_FIELDS,
        SCOPE_PRINCIPAL,
        AsgiApp,
        HeaderFields,
        Receive,
        Scope,
        Send,
        bytes_response,
        json_response,
        problem_response,
    )
    from gateway.server.http.drain import ABORT_SECONDS, ShutdownSignal
    from gateway.server.http.json_body import NotStrictJson, strict_json
    from gateway.server.http.listener import BoundSockets, bind_socket, handle_signals, run_event_loop, serve
    from gateway.server.http.middleware import EdgeMiddleware, EdgeRules
    from gateway.server.http.peer_handshake import (
        ANSWER_SIZE,
        MIN_SECRET_BYTES,
        PROOF_SECONDS,
        ChannelKey,
        ChannelRefused,
        ClientProof,
        Kind,
    )
    from gateway.server.http.peer_listener import CALLER, PeerListener, caller_header
    from gateway.server.http.router import (
        ISSUER_METADATA_PATH,
        PROTECTED_RESOURCE_PATH,
        build_admin_router,
        build_data_app,
        build_data_router,
    )
    from gateway.server.mcp.endpoint import McpEndpoint
    from gateway.server.rest.events import LOGS, MAX_LOGS, EventLogs, decode_event_id, encode_event_id
    from gateway.server.rest.operation_table import OPEN_PATHS
    from gateway.server.rest.router import build_routes
else:
    __getattr__ = lazy_exports(__name__)
