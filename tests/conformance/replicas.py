"""Three gateways on one PostgreSQL database and one object store behind a round-robin proxy: every request goes to the
next one.

`python tests/conformance/replicas.py` runs the suite against the proxy; exit codes are those of `run.py`. The gateways
are in one process and share only the database and the bucket.
"""

import asyncio
import os
import socket
import sys
import tempfile
from contextlib import AsyncExitStack, ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.support.paths import ROOT

HERE = ROOT / "tests" / "conformance"

from gateway.app.app import run_app  # noqa: E402
from gateway.app.cluster.peer_router import (  # noqa: E402
    PeerRouter,
    derive_peer_id,
    host_of,
)
from gateway.app.cluster.proxy import (  # noqa: E402
    create_forwarding_session,
    forward_request,
)
from gateway.app.settings import Settings  # noqa: E402
from gateway.server.http.middleware import (  # noqa: E402
    EdgeMiddleware,
    EdgeRules,
)
from gateway.server.http.peer_handshake import ChannelKey  # noqa: E402
from gateway.server.http.peer_listener import (  # noqa: E402
    PeerApps,
    with_caller_address,
)
from gateway.server.mcp.endpoint import McpEndpoint  # noqa: E402
from gateway.server.mcp.sessions import SessionLimits  # noqa: E402
from gateway.storage.sql.postgres.database_setup import migrate_postgres  # noqa: E402
from tests.conformance import run  # noqa: E402
from tests.conformance import tools as conformance_tools  # noqa: E402
from tests.conformance.serve import server  # noqa: E402
from tests.support.servers.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, object_store  # noqa: E402
from tests.support.servers.postgres_server import start_postgres  # noqa: E402

COUNT = 3
ON_SQLITE = '{type: sqlite, path: "${GATEWAY_DATA_DIR}/gateway.db"}'
ON_POSTGRES = """
  type: postgres
  connection: {fromEnv: DATABASE}
  blobs: {type: s3, bucket: "${S3_BUCKET}", endpoint: "${S3_URL}", region: us-east-1, prefix: conformance,
          accessKey: {fromEnv: S3_ACCESS_KEY}, secretKey: {fromEnv: S3_SECRET_KEY}}"""


def write_project(folder: Path) -> Path:
    """Write the project of the suite, with its records in PostgreSQL."""
    for part in ("configs", "policies"):
        (folder / part).mkdir(parents=True)
        for file in (HERE / "project" / part).iterdir():
            text = file.read_text(encoding="utf-8").replace(ON_SQLITE, ON_POSTGRES)
            (folder / part / file.name).write_text(text, encoding="utf-8")
    return folder


async def serve_replicas(address: str, folder: Path, environ: dict[str, str], suite: list[str]) -> list[int]:
    project = write_project(folder / "project")
    package = conformance_tools.__name__
    known = {**os.environ, **environ, "GATEWAY_DATA_DIR": str(folder), "DATABASE": address}
    settings = Settings.model_validate({"configs": project, "python_packages": (package,)})
    async with AsyncExitStack() as closing, asyncio.TaskGroup() as serving:
        urls, servers = [], []
        key = ChannelKey.new()
        for _ in range(COUNT):
            gateway = await closing.enter_async_context(run_app(settings, environ=known))
            service = gateway.service

            def change(service: Any = service) -> None:
                service.publish(service.live_revision)

            conformance_tools.when_tools_change.append(change)
            port = free_port()
            own = f"http://127.0.0.1:{port}"
            made = McpEndpoint(service, "conformance", limits=SessionLimits(poll_after=1.0), home=derive_peer_id(own))
            closing.push_async_callback(made.close)
            addresses = gateway.controlled.engine.join_cluster(own)
            assert addresses is not None
            peers = PeerRouter(made, own=own, addresses=addresses, key=key)
            closing.push_async_callback(peers.close)
            rules, authenticate = EdgeRules(hosts=settings.hosts), gateway.identities.authenticate
            servers.append(server(EdgeMiddleware(peers.front, rules, authenticate), (public := free_port())))
            inner = with_caller_address(EdgeMiddleware(peers.back, rules, authenticate))
            servers.append(
                server(inner, port, peer_apps=PeerApps(key, host_of(derive_peer_id(own)), {"forward": inner}))
            )
            urls.append(URL(f"http://127.0.0.1:{public}"))
        turns = cycle(urls)
        carried = create_forwarding_session(aiohttp.TCPConnector(limit=0, force_close=True))
        closing.push_async_callback(carried.close)

        async def proxy(scope: Any, receive: Any, send: Any) -> None:
            await forward_request(carried, next(turns), scope, receive, send)

        port = free_port()
        servers.append(server(proxy, port))
        for each in servers:
            serving.create_task(each.serve())
        codes = await asyncio.to_thread(run_suite, suite, f"http://127.0.0.1:{port}/mcp", str(folder))
        for each in servers:
            each.should_exit = True
        return codes


def run_suite(suite: list[str], url: str, folder: str) -> list[int]:
    return [
        run.asked(suite, folder, f"three gateways, requirements of {each}", "--url", url, "--requirements", each)
        for each in run.REQUIREMENTS
    ]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def main() -> int:
    try:
        suite = run.install_suite(run.cache_folder())
        with ExitStack() as servers:
            cluster = servers.enter_context(start_postgres())
            data = servers.enter_context(tempfile.TemporaryDirectory())
            store = servers.enter_context(object_store(Path(servers.enter_context(tempfile.TemporaryDirectory()))))
            migrate_postgres(cluster.address("postgres"))
            with run.start_program("upstream.py") as upstream:
                environ = {"EVERYTHING_URL": upstream, "S3_URL": store.endpoint, "S3_BUCKET": BUCKET}
                environ |= {"S3_ACCESS_KEY": ACCESS_KEY, "S3_SECRET_KEY": SECRET_KEY}
                codes = asyncio.run(serve_replicas(cluster.address("postgres"), Path(data), environ, suite))
    except (run.NotAvailable, pytest.skip.Exception) as error:
        print(f"the suite cannot be run on PostgreSQL and S3: {error}", file=sys.stderr)
        return 2
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
