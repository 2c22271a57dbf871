"""Several gateways on one PostgreSQL database: in this process, or in processes of their own."""

import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

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

CONNECTION = "GATEWAY_TEST_DATABASE"
STORAGE = {
    "type": "postgres",
    "connection": {"fromEnv": CONNECTION},
    "blobs": {"type": "files", "path": "${GATEWAY_DATA_DIR:-data}/spool"},
}


def on_postgres(documents: Sequence[Document]) -> list[Document]:
    """The same project with its records in PostgreSQL."""
    others = [each for each in documents if each["kind"] != "Storage"]
    return [*others, document("Storage", "main", STORAGE)]


def written(folder: Path, backend: Counting, *rules: Document, tools: Sequence[Any] = ()) -> Path:
    made = [make(backend.port) for make in tools]
    documents = on_postgres(desk(backend.port, tools=made, rules=rules))
    return write_project(folder / "p", documents, policy=POLICY)


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
    """Gateways in processes of their own that know each other."""
    made: list[Forked] = []
    try:
        for _ in range(count):
            port = _free_port()
            given = {
                **(env or {}),
                **environ_of(PEOPLE),
                CONNECTION: address,
                "GATEWAY_DATA_DIR": str(data),
                "GATEWAY_PEER_URL": f"http://127.0.0.1:{port}",
            }
            made.append(forks.start(project, data, env=given, options=("--port", str(port))))
        yield made
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
