"""Servers of the benchmarks beside the gateway, each in a process of its own: `python benchmarks/servers.py NAME`.

They are references that do the same job without governance (a bare ASGI echo, FastMCP), and the services behind a
gateway, which answer from memory, so that only the way to them is measured.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.load import free_port, wait_for

Served = tuple[int, int]
"""Process and port of a server."""


def exit_on_sigterm() -> None:
    """End everything that was started, as Ctrl+C does; in the background a shell may have switched that off."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


@contextmanager
def start_server(name: str, behind: int = 0) -> Iterator[Served]:
    """`behind` is the port of the service that it calls, if it calls one."""
    port = free_port()
    environ = {**os.environ, "PORT": str(port), "BEHIND": str(behind)}
    process = subprocess.Popen([sys.executable, __file__, name], env=environ, stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield process.pid, port
    finally:
        process.kill()
        process.wait()


def main() -> None:
    if sys.argv[1] == "stdio":
        serve_stdio()
    else:
        SERVERS[sys.argv[1]](int(os.environ["PORT"]))


Answer = Callable[[dict[str, Any], bytes], tuple[int, bytes]]
"""Returns status and body for a scope of ASGI and the body of its request."""


def serve_asgi(port: int, answer: Answer, content_type: bytes = b"application/json") -> None:
    import uvicorn

    async def app(
        scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        event = await receive()
        body: bytes = event["body"]
        while event.get("more_body"):
            event = await receive()
            body += event["body"]
        status, content = answer(scope, body)
        headers = [(b"content-type", content_type), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", lifespan="off", access_log=False)


def serve_echo(port: int) -> None:
    serve_asgi(port, lambda _scope, body: (200, body))


def serve_collector(port: int) -> None:
    """Accept everything and ignore it."""
    serve_asgi(port, lambda _scope, _body: (200, b""), b"application/x-protobuf")


def serve_quotes(port: int) -> None:
    """An HTTP service with one small JSON answer."""
    serve_asgi(port, lambda _scope, _body: (200, b'{"sku":"DESK-160","total":"1316.00","currency":"EUR"}'))


# --- MCP, by hand, for both eras ---


def serve_upstream(port: int) -> None:
    import orjson

    def answer(scope: dict[str, Any], body: bytes) -> tuple[int, bytes]:
        if scope["method"] != "POST":
            return 405, b""
        reply = answer_message(orjson.loads(body))
        return (202, b"") if reply is None else (200, orjson.dumps(reply))

    serve_asgi(port, answer)


def serve_stdio() -> None:
    import orjson

    for line in sys.stdin.buffer:
        reply = answer_message(orjson.loads(line))
        if reply is not None:
            sys.stdout.buffer.write(orjson.dumps(reply) + b"\n")
            sys.stdout.buffer.flush()


def answer_message(message: dict[str, Any]) -> dict[str, Any] | None:
    if "id" not in message:
        return None
    found = _result(message["method"], message.get("params") or {})
    part = {"error": {"code": -32601, "message": "no such method"}} if found is None else {"result": found}
    return {"jsonrpc": "2.0", "id": message["id"], **part}


def _result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    capabilities: dict[str, Any] = {"tools": {}}
    info = {"name": "behind", "version": "1"}
    match method:
        case "tools/call":
            content = [{"type": "text", "text": params["arguments"]["text"]}]
            return {"content": content, "isError": False, "resultType": "complete"}
        case "tools/list":
            schema = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
            tools = [{"name": "echo", "description": "Returns its text.", "inputSchema": schema}]
            return {"tools": tools, "resultType": "complete", "ttlMs": 60000, "cacheScope": "public"}
        case "server/discover":
            meta = {"io.modelcontextprotocol/serverInfo": info}
            found = {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, "_meta": meta}
            return {**found, "resultType": "complete", "ttlMs": 60000, "cacheScope": "public"}
        case "initialize":
            return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
        case "ping":
            return {}
    return None


# --- FastMCP ---


def serve_fastmcp(port: int, *, stateless: bool = True) -> None:
    import aiohttp
    from fastmcp import FastMCP

    from gateway.examples import pricing

    server = FastMCP("bench")
    clients: list[aiohttp.ClientSession] = []

    @server.tool
    def echo(text: str) -> str:
        """Returns its input."""
        return text

    @server.tool
    def price_quote(sku: str, quantity: int) -> dict[str, Any]:
        """Computes a price."""
        return pricing.quote(sku, quantity)

    @server.tool
    async def fetch(sku: str) -> dict[str, Any]:
        """Asks the HTTP service."""
        if not clients:
            clients.append(aiohttp.ClientSession(f"http://127.0.0.1:{os.environ['BEHIND']}"))
        async with clients[0].get(f"/quotes/{sku}") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    server.run(
        transport="http", host="127.0.0.1", port=port, stateless_http=stateless, log_level="error", show_banner=False
    )


def serve_fastmcp_sessions(port: int) -> None:
    serve_fastmcp(port, stateless=False)


def serve_proxy(port: int) -> None:
    """One connected client for all callers, which is the proxy's fastest mode."""
    from fastmcp import Client
    from fastmcp.server import create_proxy

    async def serve() -> None:
        async with Client(f"http://127.0.0.1:{os.environ['BEHIND']}/mcp") as client:
            await create_proxy(client).run_http_async(
                host="127.0.0.1", port=port, stateless_http=True, json_response=True, log_level="error",
                show_banner=False,
            )  # fmt: skip

    asyncio.run(serve())


SERVERS = {
    "echo": serve_echo,
    "collector": serve_collector,
    "quotes": serve_quotes,
    "upstream": serve_upstream,
    "fastmcp": serve_fastmcp,
    "fastmcp-sessions": serve_fastmcp_sessions,
    "proxy": serve_proxy,
}


if __name__ == "__main__":
    main()
