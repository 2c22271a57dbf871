"""Several gateways on one PostgreSQL database: in this process, or in processes of their own."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from gated import PEOPLE, POLICY, desk
from secured import Counting, Document, Started, counting, document, started, write_project

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


@asynccontextmanager
async def replicas(
    tmp_path: Path, address: str, *rules: Document, count: int = 2, tools: Sequence[Any] = ()
) -> AsyncIterator[tuple[list[Started], Counting]]:
    """Gateways in this process, each with everything of its own but the database and the spool."""
    async with counting() as backend, AsyncExitStack() as closing:
        project = written(tmp_path, backend, *rules, tools=tools)
        made = [
            await closing.enter_async_context(
                started(project, tmp_path / "data", people=PEOPLE, environ={CONNECTION: address})
            )
            for _ in range(count)
        ]
        yield made, backend
