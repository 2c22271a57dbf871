"""What runs behind a tool: Python functions, HTTP services, programs, OpenAPI operations, MCP servers.

May import `artifacts`, `http_client`, `mcp`, `model` and `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.backends.command.backend import Command, CommandBackend
    from gateway.backends.command.child_process import HostControls
    from gateway.backends.http.backend import ArgumentSelection, HttpBackend, HttpRequest
    from gateway.backends.http.credentials import Auth, BasicAuth, BearerAuth, CookieAuth, HeaderAuth, QueryAuth
    from gateway.backends.http.url_template import parse_url_template
    from gateway.backends.mcp.backend import McpBackend, RemoteTool
    from gateway.backends.mcp.connection import Definitions, ListKind, UpstreamConnection
    from gateway.backends.mcp.credentials import (
        AssertionSigner,
        OAuthCredentials,
        StaticCredentials,
        TokenGrant,
        UpstreamCredentials,
    )
    from gateway.backends.mcp.http_client import UpstreamEndpoint
    from gateway.backends.mcp.http_transport import StreamableHttpConnection
    from gateway.backends.mcp.rpc_responses import RemoteError
    from gateway.backends.mcp.server_process import ServerProgram
    from gateway.backends.mcp.stdio_transport import StdioConnection
    from gateway.backends.mcp.upstreams import HealthPolicy, UpstreamResources, Upstreams
    from gateway.backends.openapi.backend import OpenApiBackend, OpenApiOperation, TokenSource
    from gateway.backends.openapi.document import MAX_BYTES, OpenApiInvalid, escape_text
    from gateway.backends.openapi.request_template import parse_request
    from gateway.backends.openapi.tool_definitions import (
        ANSWER_META,
        REQUEST_META,
        DocumentDefinitions,
        OperationEntry,
        import_document,
        to_definition,
    )
    from gateway.backends.python.backend import PythonBackend, PythonFunction
    from gateway.backends.result_conversion import (
        BackendUnusable,
        MediaTemplate,
        OutputCheckBackend,
        enforce_deadline,
        read_all,
    )
else:
    __getattr__ = lazy_exports(__name__)
