"""Three gateways on one PostgreSQL database and one object store behind a plain round-robin proxy: every request goes
to another one.

`python tests/conformance/three_gateways.py` runs the suite against the proxy; exit codes are as those of `run.py`. The
gateways are in one process, each with everything of its own but the database and the bucket.
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

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import conformance_tools  # noqa: E402
import run  # noqa: E402
from postgres_clusters import running_cluster  # noqa: E402
from seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, object_store  # noqa: E402
from serve import server  # noqa: E402

from gateway.runtime.passing import carrier, passed_on  # noqa: E402
from gateway.runtime.peer_listener import Door, as_the_caller  # noqa: E402
from gateway.runtime.peer_proof import ChannelKey  # noqa: E402
from gateway.runtime.peers import Peers, host_of, named  # noqa: E402
from gateway.runtime.running import running  # noqa: E402
from gateway.runtime.settings import Settings  # noqa: E402
from gateway.storage.postgres.migrating import migrate  # noqa: E402
from gateway.web.edge import Edge, EdgeRules  # noqa: E402
from gateway.web.mcp.endpoint import McpEndpoint  # noqa: E402
from gateway.web.mcp.sessions import SessionLimits  # noqa: E402

COUNT = 3
ON_SQLITE = '{type: sqlite, path: "${GATEWAY_DATA_DIR}/gateway.db"}'
ON_POSTGRES = """
  type: postgres
  connection: {fromEnv: DATABASE}
  blobs: {type: s3, bucket: "${S3_BUCKET}", endpoint: "${S3_URL}", region: us-east-1, prefix: conformance,
          accessKey: {fromEnv: S3_ACCESS_KEY}, secretKey: {fromEnv: S3_SECRET_KEY}}"""


def written(folder: Path) -> Path:
    """The project of the suite, with its records in PostgreSQL."""
    for part in ("configs", "policies"):
        (folder / part).mkdir(parents=True)
        for file in (HERE / "project" / part).iterdir():
            text = file.read_text(encoding="utf-8").replace(ON_SQLITE, ON_POSTGRES)
            (folder / part / file.name).write_text(text, encoding="utf-8")
    return folder


async def served(address: str, folder: Path, environ: dict[str, str], suite: list[str]) -> list[int]:
    project = written(folder / "project")
    package = conformance_tools.__name__
    known = {**os.environ, **environ, "GATEWAY_DATA_DIR": str(folder), "DATABASE": address}
    settings = Settings.model_validate({"configs": project, "python_packages": (package,)})
    async with AsyncExitStack() as closing, asyncio.TaskGroup() as serving:
        urls, servers = [], []
        key = ChannelKey.new()
        for _ in range(COUNT):
            gateway = await closing.enter_async_context(running(settings, environ=known))
            service = gateway.service

            def change(service: Any = service) -> None:
                service.publish(service.published)

            conformance_tools.when_tools_change.append(change)
            port = free_port()
            own = f"http://127.0.0.1:{port}"
            made = McpEndpoint(service, "conformance", limits=SessionLimits(poll_after=1.0), home=named(own))
            closing.push_async_callback(made.close)
            addresses = gateway.controlled.engine.joined(own)
            assert addresses is not None
            peers = Peers(made, own=own, addresses=addresses, key=key)
            closing.push_async_callback(peers.close)
            rules, authenticate = EdgeRules(hosts=settings.hosts), gateway.identities.authenticate
            servers.append(server(Edge(peers.front, rules, authenticate), (public := free_port())))
            inner = as_the_caller(Edge(peers.back, rules, authenticate))
            servers.append(server(inner, port, door=Door(key, host_of(named(own)), {"forward": inner})))
            urls.append(URL(f"http://127.0.0.1:{public}"))
        turns = cycle(urls)
        carried = carrier(aiohttp.TCPConnector(limit=0, force_close=True))
        closing.push_async_callback(carried.close)

        async def proxy(scope: Any, receive: Any, send: Any) -> None:
            await passed_on(carried, next(turns), scope, receive, send)

        port = free_port()
        servers.append(server(proxy, port))
        for each in servers:
            serving.create_task(each.serve())
        codes = await asyncio.to_thread(asked, suite, f"http://127.0.0.1:{port}/mcp", str(folder))
        for each in servers:
            each.should_exit = True
        return codes


def asked(suite: list[str], url: str, folder: str) -> list[int]:
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
        suite = run.installed_suite(run.cache_folder())
        with ExitStack() as servers:
            cluster = servers.enter_context(running_cluster())
            data = servers.enter_context(tempfile.TemporaryDirectory())
            store = servers.enter_context(object_store(Path(servers.enter_context(tempfile.TemporaryDirectory()))))
            migrate(cluster.address("postgres"))
            with run.started("everything_upstream.py") as upstream:
                environ = {"EVERYTHING_URL": upstream, "S3_URL": store.endpoint, "S3_BUCKET": BUCKET}
                environ |= {"S3_ACCESS_KEY": ACCESS_KEY, "S3_SECRET_KEY": SECRET_KEY}
                codes = asyncio.run(served(cluster.address("postgres"), Path(data), environ, suite))
    except (run.NotAvailable, pytest.skip.Exception) as error:
        print(f"the suite cannot be run on PostgreSQL and S3: {error}", file=sys.stderr)
        return 2
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
