"""Private networks allowed in a document: names may lead to the listed networks, from the YAML to the connection."""

import asyncio
import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.app.backend_factory import BackendFactory
from gateway.app.project import ProjectFolders, load_project
from gateway.app.secrets import Secrets
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.config.kinds.tools import ToolDocument
from gateway.model.tools.backend import BackendError
from tests.support.gateways.projects import (
    Person,
    base_documents,
    catalogue,
    http_tool,
    start_call_counter,
    tokens_of,
    write_project,
)

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("staff",))


async def resolve_to_loopback(host: str, port: int) -> Sequence[str]:
    """Resolve every name to this machine."""
    return ["127.0.0.1"]


def project(folder: Path, port: int, networks: list[str]) -> Path:
    backend = {"type": "http", "method": "GET", "url": f"http://wiki.corp.example:{port}/page", "networks": networks}
    documents = [*base_documents(["tokens"]), tokens_of([ANA]), http_tool("page", 1, backend=backend)]
    documents.append(catalogue("desk", ["role:staff"], ["*"]))
    return write_project(folder / "p", documents, policy="p, role:staff, *, tool:*, invoke, internal, allow\n")


async def call_tool(folder: Path) -> bytes:
    """Return the answer of the declared tool; names are resolved by `resolve_to_loopback`."""
    found = load_project(ProjectFolders.from_folder(folder), environ=os.environ, today=date(2026, 11, 16))
    assert found.access is not None, found.diagnostics
    [document] = [each.spec for each in found.loaded.documents if isinstance(each.spec, ToolDocument)]
    kept = bytearray()

    async def keep(content: bytes) -> None:
        kept.extend(content)

    backends = BackendFactory(Secrets({}, folder), (), lookup=resolve_to_loopback)
    try:
        backend = backends.build(found.access.snapshot.tools["page"], document.spec, artifact=SpooledArtifact)
        call: Any = SimpleNamespace(args={}, keep=keep, idempotency_key=None, hops=None)
        async with asyncio.timeout(30):
            await backend.run(call)
    finally:
        await backends.close()
    return bytes(kept)


async def test_declared_network_is_reached(tmp_path: Path) -> None:
    async with start_call_counter() as service:
        service.answer = lambda body: b"a page"

        assert await call_tool(project(tmp_path, service.port, ["127.0.0.0/8"])) == b"a page"


@pytest.mark.parametrize("networks", [[], ["10.0.0.0/8"], ["127.0.0.2"]], ids=["none", "another", "neighbour"])
async def test_other_networks_are_not(networks: list[str], tmp_path: Path) -> None:
    async with start_call_counter() as service:
        with pytest.raises(BackendError, match="resolves to an address that tools may not reach"):
            await call_tool(project(tmp_path, service.port, networks))

        assert service.requests == []
