"""OpenAPI documents at an address: locked, served from the lock alone, and reported as drift when they change."""

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from gateway.app.status_report import build_status
from tests.backends.mcp.servers.front_gateway import gateway, project, upstream
from tests.support.gateways.commands import run_gateway

pytestmark = pytest.mark.anyio


class Shop(ThreadingHTTPServer):
    """A service that publishes its own document, and can move its operation."""

    daemon_threads = True
    path = "/orders"
    asked: list[str]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Shop

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        query = {"name": "q", "in": "query", "schema": {"type": "string"}}
        paths = {self.server.path: {"get": {"operationId": "listOrders", "parameters": [query]}}}
        document = {"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"}, "paths": paths}
        content = json.dumps(document if self.path == "/openapi.json" else {"at": self.path}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Keep the test output quiet."""


@contextmanager
def shop() -> Iterator[Shop]:
    server = Shop(("127.0.0.1", 0), _Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(command: str, home: Path) -> subprocess.CompletedProcess[str]:
    return run_gateway(command, "--project", str(home))


async def test_document_at_an_address_is_served_as_it_was_locked(tmp_path: Path) -> None:
    with shop() as service:
        url = f"http://127.0.0.1:{service.server_port}"
        transport = {"type": "openapi", "document": f"{url}/openapi.json", "server": url}
        home = project(tmp_path / "project", upstream("shop", transport))

        locked = run("lock", home)
        service.path = "/admin"
        drifted = run("drift", home)
        service.asked.clear()
        async with gateway(home) as started, Client(started.url, mode="2026-07-28") as client:
            called = await client.call_tool("shop_listOrders", {"q": "tea"})

        assert locked.returncode == 0, locked.stderr
        assert 'path: "/orders"' in (home / "configs" / "gateway.lock").read_text()
        assert drifted.returncode == 2, drifted.stderr
        assert "listOrders" in drifted.stdout
        assert service.asked == ["/orders?q=tea"]
        assert not called.is_error


async def test_operation_that_moved_since_it_was_locked_is_withheld(tmp_path: Path) -> None:
    with shop() as service:
        url = f"http://127.0.0.1:{service.server_port}"
        transport = {"type": "openapi", "document": f"{url}/openapi.json", "server": url}
        terms = {"include": ["*"], "trust": {"tier": "internal", "flags": []}, "onChange": "quarantine"}
        home = project(tmp_path / "project", upstream("shop", transport, **{"import": terms}))

        locked = run("lock", home)
        async with gateway(home) as started, Client(started.url, mode="2026-07-28") as client:
            as_locked = await client.call_tool("shop_listOrders", {"q": "tea"})
        service.path = "/admin"
        async with gateway(home) as started, Client(started.url, mode="2026-07-28") as client:
            async with asyncio.timeout(20):
                while not (status := await build_status(started.running))["withheld"]:
                    await asyncio.sleep(0.01)
            service.asked.clear()
            moved = await client.call_tool("shop_listOrders", {"q": "tea"})

        assert locked.returncode == 0, locked.stderr
        assert not as_locked.is_error
        assert [(each["tool"], each["why"]) for each in status["withheld"]] == [("listOrders", "changed")]
        assert moved.is_error
        assert service.asked == []


async def test_document_that_cannot_be_had_withholds_nothing(tmp_path: Path) -> None:
    with shop() as service:
        url = f"http://127.0.0.1:{service.server_port}"
        with shop() as elsewhere:
            document = f"http://127.0.0.1:{elsewhere.server_port}/openapi.json"
            transport = {"type": "openapi", "document": document, "server": url}
            terms = {"include": ["*"], "trust": {"tier": "internal", "flags": []}, "onChange": "quarantine"}
            home = project(tmp_path / "project", upstream("shop", transport, **{"import": terms}))
            locked = run("lock", home)
        async with gateway(home) as started, Client(started.url, mode="2026-07-28") as client:
            called = await client.call_tool("shop_listOrders", {"q": "tea"})

        assert locked.returncode == 0, locked.stderr
        assert not called.is_error
        assert service.asked == ["/orders?q=tea"]


def test_address_that_gives_no_document_locks_nothing(tmp_path: Path) -> None:
    with shop() as service:
        url = f"http://127.0.0.1:{service.server_port}"
        transport = {"type": "openapi", "document": f"{url}/other.json", "server": url}
        home = project(tmp_path / "project", upstream("shop", transport))

        locked = run("lock", home)

        assert locked.returncode == 1
        assert "the 'openapi' version is missing or no text" in locked.stdout + locked.stderr
        assert not (home / "configs" / "gateway.lock").exists()
