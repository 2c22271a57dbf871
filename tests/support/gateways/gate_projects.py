"""Projects with gated calls, people who ask and decide, and a backend that counts the calls that ran."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.gateways.projects import (
    CallCounter,
    Caller,
    Document,
    GatewayUnderTest,
    Person,
    Reply,
    base_documents,
    catalogue,
    document,
    http_tool,
    start_call_counter,
    start_gateway,
    tokens_of,
    write_project,
)

ANA = Person("ana", ("agent",))
EVA = Person("eva", ("agent",))
LEO = Person("leo", ("agent", "lead"))
LIZ = Person("liz", ("lead",))
PEOPLE = (ANA, EVA, LEO, LIZ)

POLICY = """\
p, role:agent, *, tool:*, discover|invoke|read, community, allow
p, role:lead, desk, tool:plain, discover, internal, allow
p, role:lead, *, tool:*, approve, community, allow
"""

FLAGS = ("egress", "untrusted-output")
HELD = {"type": "approval", "from": ["role:lead"], "timeout": "10m", "reason": "money leaves"}


def rule(name: str, check: Mapping[str, Any], *, tools: Sequence[str] = ("pay",), **more: Any) -> Document:
    match = more.pop("match", {"tools": list(tools)})
    spec = {"description": f"{name}.", "match": match, "check": dict(check), "holdFor": "1ms", **more}
    return document("GateRule", name, spec)


def approval_client(
    port: int,
    *,
    tools: Sequence[Document] = (),
    rules: Sequence[Document] = (),
    people: Sequence[Person] = PEOPLE,
    implicit: str = "30m",
) -> list[Document]:
    """Return two catalogues with the same tools: always `plain` and `pay`, which writes."""
    made = [http_tool("plain", port), http_tool("pay", port, flags=["writes"]), *tools]
    names = [each["metadata"]["name"] for each in made]
    every = ["role:agent", "role:lead"]
    placed = [catalogue("desk", every, names), catalogue("other", every, names)]
    for each in placed:
        each["spec"]["turns"] = {"implicit": implicit}
    seen = {"hint": {"openWorld": True}}
    flags = [document("TrustFlag", name, {"description": f"{name}.", **seen}) for name in FLAGS]
    return [*base_documents(["tokens"]), tokens_of(people), *flags, *made, *placed, *rules]


def write(folder: Path, documents: Sequence[Document], *, policy: str = POLICY, roles: str = "") -> Path:
    return write_project(folder, documents, policy=policy, roles=roles)


@asynccontextmanager
async def start_gate_project(
    tmp_path: Path, *rules: Document, tools: Sequence[Any] = (), implicit: str = "30m", **settings: Any
) -> AsyncIterator[tuple[GatewayUnderTest, CallCounter]]:
    """Run a gateway in this process. `tools` are functions that take the port of the backend."""
    async with start_call_counter() as backend:
        made = [make(backend.port) for make in tools]
        project = write(tmp_path / "p", approval_client(backend.port, tools=made, rules=rules, implicit=implicit))
        async with start_gateway(project, tmp_path / "data", people=PEOPLE, **settings) as gateway:
            yield gateway, backend


async def pay(caller: Caller, text: str = "x", *, place: str = "desk", **more: str) -> Reply:
    return await caller.rest_call(place, "pay", {"text": text}, **more)


def pending_id(reply: Reply) -> str:
    """Return the id of the approval that a held call waits for."""
    assert reply.status == 202, reply.body
    [approval] = reply.json["pending"]["approvals"]
    return str(approval["id"])


async def grant(caller: Caller, id: str, **body: Any) -> Reply:
    return await caller.rest("POST", f"/v1/approvals/{id}/resolve", body)


def code_of(reply: Reply) -> str:
    """Return the refusal text for the model."""
    assert reply.json["isError"] is True, reply.body
    return str(reply.json["result"]["text"])
