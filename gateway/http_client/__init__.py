"""The only HTTP client: one policy for TLS, redirects, limits and addresses, with the values of each user.

`HttpConnections` holds one `ConnectionPool` for each service behind tools. `HttpSession` sends single requests, perhaps
over a proxy or to another process of the gateway, and `send_blocking` works without an event loop. None of them follows
a redirect: a user that wants to checks the location and sends another request.

Two libraries bring their own client: obstore (buckets) gets its time limits as options, and gRPC (telemetry) follows no
redirects. Channels to other processes of the gateway have their own connector, which authenticates both sides.

May import `mcp`, `model` and `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.http_client.allowed_addresses import PORTS, Network, Origin, ResolveHost, is_loopback, resolve_host
    from gateway.http_client.http1 import Http1Response, decode_body
    from gateway.http_client.http_policy import HttpPolicy, ResponseTooLarge, create_tls_context, send_blocking
    from gateway.http_client.pool import HttpConnections
    from gateway.http_client.session import HttpSession, find_proxy
else:
    __getattr__ = lazy_exports(__name__)
