"""Several gateways on one PostgreSQL database: in this process, or in their own processes."""

import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import aiohttp

from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.gate_projects import PEOPLE, POLICY, approval_client
from tests.support.gateways.projects import (
    Ask,
    CallCounter,
    Document,
    GatewayUnderTest,
    Reply,
    document,
    environ_of,
    send_http,
    start_call_counter,
    start_gateway,
    write_project,
)

if TYPE_CHECKING:
    from tests.support.servers.object_store import ObjectStore

CONNECTION = "GATEWAY_TEST_DATABASE"
PEER_KEY = "the-same-for-all-gateways-of-a-test"
STORAGE = {
    "type": "postgres",
    "connection": {"fromEnv": CONNECTION},
    "blobs": {"type": "files", "path": "${GATEWAY_DATA_DIR:-data}/spool"},
}


IN_A_BUCKET = {
    "type": "s3",
    "bucket": "${S3_BUCKET}",
    "endpoint": "${S3_URL}",
    "region": "us-east-1",
    "prefix": "${S3_PREFIX}",
    "accessKey": {"fromEnv": "S3_ACCESS_KEY"},
    "secretKey": {"fromEnv": "S3_SECRET_KEY"},
}


def postgres_documents(documents: Sequence[Document], blobs: Mapping[str, Any] | None = None) -> list[Document]:
    """The same project with its records in PostgreSQL."""
    others = [each for each in documents if each["kind"] != "Storage"]
    return [*others, document("Storage", "main", {**STORAGE, **({} if blobs is None else {"blobs": blobs})})]


def write_replica_project(
    folder: Path,
    backend: CallCounter,
    *rules: Document,
    tools: Sequence[Any] = (),
    blobs: Mapping[str, Any] | None = None,
) -> Path:
    made = [make(backend.port) for make in tools]
    documents = postgres_documents(approval_client(backend.port, tools=made, rules=rules), blobs)
    return write_project(folder / "p", documents, policy=POLICY)


@dataclass
class Replica:
    """One slot behind a proxy. Its gateway may be killed and replaced."""

    forks: ForkServer
    project: Path
    data: Path
    env: Mapping[str, str]
    port: int = field(default_factory=lambda: _free_port())
    peer_port: int = field(default_factory=lambda: _free_port())
    gateway: GatewayFork | None = None
    options: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def peer_url(self) -> str:
        """The address for the other gateways."""
        return f"http://127.0.0.1:{self.peer_port}"

    def start(self) -> None:
        key = self.data.parent / "peer-key"
        key.parent.mkdir(parents=True, exist_ok=True)
        key.write_text(PEER_KEY, encoding="ascii")
        env = {**environ_of(PEOPLE), "GATEWAY_PEER_KEY_FILE": str(key), **self.env}
        env |= {"GATEWAY_DATA_DIR": str(self.data), "GATEWAY_PEER_URL": self.peer_url}
        options = ("--port", str(self.port), *self.options)
        self.gateway = self.forks.start(self.project, self.data, env=env, options=options)
        self.gateway.peer_url = self.peer_url

    def kill(self) -> None:
        gateway, self.gateway = self.gateway, None
        if gateway is not None:
            gateway.kill()


def bucket_documents(store: "ObjectStore") -> dict[str, str]:
    """Return the variables of a project with `IN_A_BUCKET`, with a unique prefix."""
    from tests.support.servers.object_store import (  # imported only by tests that need it
        ACCESS_KEY,
        BUCKET,
        SECRET_KEY,
    )

    place = {"S3_URL": store.endpoint, "S3_BUCKET": BUCKET, "S3_PREFIX": f"replicas-{uuid4().hex}"}
    return {**place, "S3_ACCESS_KEY": ACCESS_KEY, "S3_SECRET_KEY": SECRET_KEY}


@contextmanager
def placed_replicas(
    forks: ForkServer, project: Path, folder: Path, env: Mapping[str, str], *, count: int = 3
) -> Iterator[list[Replica]]:
    """Run gateways in their own processes that know each other and share no folder."""
    made = [Replica(forks, project, folder / f"data-{number}", env) for number in range(count)]
    try:
        for each in made:
            each.start()
        yield made
    finally:
        for each in made:
            each.kill()


@contextmanager
def forked_replicas(
    forks: ForkServer,
    project: Path,
    data: Path,
    address: str,
    *,
    count: int = 3,
    env: Mapping[str, str] | None = None,
) -> Iterator[list[GatewayFork]]:
    """Like `placed_replicas`, with one folder for all."""
    made = [Replica(forks, project, data, {**(env or {}), CONNECTION: address}) for _ in range(count)]
    try:
        for each in made:
            each.start()
        yield [each.gateway for each in made if each.gateway is not None]
    finally:
        for each in made:
            each.kill()


def round_robin(session: aiohttp.ClientSession, gateways: Sequence[GatewayFork]) -> Ask:
    """Like a plain proxy, send every request to the next gateway."""
    turns = cycle([send_http(session, each.url) for each in gateways])

    async def ask(method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> Reply:
        return await next(turns)(method, path, headers, body)

    return ask


def _free_port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@asynccontextmanager
async def replicas(
    tmp_path: Path, address: str, *rules: Document, count: int = 2, tools: Sequence[Any] = ()
) -> AsyncIterator[tuple[list[GatewayUnderTest], CallCounter]]:
    """Run gateways in this process that share only the database and the spool."""
    async with start_call_counter() as backend, AsyncExitStack() as stack:
        project = write_replica_project(tmp_path, backend, *rules, tools=tools)
        made = [
            await stack.enter_async_context(
                start_gateway(project, tmp_path / "data", people=PEOPLE, environ={CONNECTION: address})
            )
            for _ in range(count)
        ]
        yield made, backend
