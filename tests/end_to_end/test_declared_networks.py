"""Private networks that a document lets a name lead to: what it lists, from the YAML to the connection."""

import asyncio
import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from secured import Person, catalogue, counting, frame, http_tool, tokens_of, write_project

from gateway.assembly import Project, assemble
from gateway.config.specs.tools import ToolDocument
from gateway.core.artifacts import SpooledArtifact
from gateway.governance.ports import BackendFailed
from gateway.runtime.backends import Backends
from gateway.runtime.secrets import Secrets

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("staff",))


async def inside(host: str, port: int) -> Sequence[str]:
    """A name server that sends everybody to this machine."""
    return ["127.0.0.1"]


def project(folder: Path, port: int, networks: list[str]) -> Path:
    backend = {"type": "http", "method": "GET", "url": f"http://wiki.corp.example:{port}/page", "networks": networks}
    documents = [*frame(["tokens"]), tokens_of([ANA]), http_tool("page", 1, backend=backend)]
    documents.append(catalogue("desk", ["role:staff"], ["*"]))
    return write_project(folder / "p", documents, policy="p, role:staff, *, tool:*, invoke, internal, allow\n")


async def called(folder: Path) -> bytes:
    """What the declared tool answers, with a name server of our own."""
    found = assemble(Project.at(folder), environ=os.environ, today=date(2026, 11, 16))
    assert found.access is not None, found.diagnostics
    [document] = [each.spec for each in found.loaded.documents if isinstance(each.spec, ToolDocument)]
    kept = bytearray()

    async def keep(chunks: Any) -> None:
        async for chunk in chunks:
            kept.extend(chunk)

    backends = Backends(Secrets({}, folder), (), lookup=inside)
    try:
        backend = backends.of(found.access.snapshot.tools["page"], document.spec, artifact=SpooledArtifact)
        call: Any = SimpleNamespace(args={}, keep=keep, idempotency_key=None, hops=None)
        async with asyncio.timeout(30):
            await backend.run(call)
    finally:
        await backends.close()
    return bytes(kept)


async def test_declared_network_is_reached(tmp_path: Path) -> None:
    async with counting() as service:
        service.answer = lambda body: b"a page"

        assert await called(project(tmp_path, service.port, ["127.0.0.0/8"])) == b"a page"


@pytest.mark.parametrize("networks", [[], ["10.0.0.0/8"], ["127.0.0.2"]], ids=["none", "another", "neighbour"])
async def test_other_networks_are_not(networks: list[str], tmp_path: Path) -> None:
    async with counting() as service:
        with pytest.raises(BackendFailed, match="leads to an address that tools may not reach"):
            await called(project(tmp_path, service.port, networks))

        assert service.requests == []
