"""Several gateways on one PostgreSQL database: in this process, or in processes of their own."""

import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import aiohttp
from forked import Forked, Forking
from gated import PEOPLE, POLICY, desk
from secured import (
    Ask,
    Counting,
    Document,
    Reply,
    Started,
    counting,
    document,
    environ_of,
    over_http,
    started,
    write_project,
)

if TYPE_CHECKING:
    from seaweed import ObjectStore

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


def on_postgres(documents: Sequence[Document], blobs: Mapping[str, Any] | None = None) -> list[Document]:
    """The same project with its records in PostgreSQL."""
    others = [each for each in documents if each["kind"] != "Storage"]
    return [*others, document("Storage", "main", {**STORAGE, **({} if blobs is None else {"blobs": blobs})})]


def written(
    folder: Path,
    backend: Counting,
    *rules: Document,
    tools: Sequence[Any] = (),
    blobs: Mapping[str, Any] | None = None,
) -> Path:
    made = [make(backend.port) for make in tools]
    documents = on_postgres(desk(backend.port, tools=made, rules=rules), blobs)
    return write_project(folder / "p", documents, policy=POLICY)


@dataclass
class Replica:
    """One place behind a proxy. The gateway in it may be killed, and another one started in its place."""

    forks: Forking
    project: Path
    data: Path
    env: Mapping[str, str]
    port: int = field(default_factory=lambda: _free_port())
    peer_port: int = field(default_factory=lambda: _free_port())
    gateway: Forked | None = None
    options: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def peer_url(self) -> str:
        """How the others reach it."""
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


def in_bucket(store: "ObjectStore") -> dict[str, str]:
    """What a project with `IN_A_BUCKET` reads, with a prefix that nobody else has."""
    from seaweed import ACCESS_KEY, BUCKET, SECRET_KEY  # only those who ask wait for its library

    place = {"S3_URL": store.endpoint, "S3_BUCKET": BUCKET, "S3_PREFIX": f"replicas-{uuid4().hex}"}
    return {**place, "S3_ACCESS_KEY": ACCESS_KEY, "S3_SECRET_KEY": SECRET_KEY}


@contextmanager
def placed_replicas(
    forks: Forking, project: Path, folder: Path, env: Mapping[str, str], *, count: int = 3
) -> Iterator[list[Replica]]:
    """Gateways in processes of their own that know each other, and share no folder."""
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
    forks: Forking,
    project: Path,
    data: Path,
    address: str,
    *,
    count: int = 3,
    env: Mapping[str, str] | None = None,
) -> Iterator[list[Forked]]:
    """The same with one folder for all."""
    made = [Replica(forks, project, data, {**(env or {}), CONNECTION: address}) for _ in range(count)]
    try:
        for each in made:
            each.start()
        yield [each.gateway for each in made if each.gateway is not None]
    finally:
        for each in made:
            each.kill()


def round_robin(session: aiohttp.ClientSession, gateways: Sequence[Forked]) -> Ask:
    """As a plain proxy does it: every request goes to the next one, whatever it is about."""
    turns = cycle([over_http(session, each.url) for each in gateways])

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
) -> AsyncIterator[tuple[list[Started], Counting]]:
    """Gateways in this process, each with everything of its own but the database and the spool."""
    async with counting() as backend, AsyncExitStack() as stack:
        project = written(tmp_path, backend, *rules, tools=tools)
        made = [
            await stack.enter_async_context(
                started(project, tmp_path / "data", people=PEOPLE, environ={CONNECTION: address})
            )
            for _ in range(count)
        ]
        yield made, backend
