"""No backend runs without a decision for that call.

Every backend of a project is wrapped in a tripwire that checks a log written by the authoriser itself, not by the
handler: was the caller allowed to invoke this tool, within this call? The same project with the check removed from the
handlers must trip it.
"""

import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gateway.app.backend_factory import BackendFactory
from gateway.app.revisions import builder as publishing
from gateway.app.secrets import Secrets
from gateway.config.kinds.tools import ToolSpec
from gateway.engine import handler as handlers
from gateway.engine.call import get_current_call
from gateway.engine.gates import guard as gating
from gateway.engine.stages.factory import StageState
from gateway.model.tools.backend import Backend, Invocation
from gateway.policy.access import Access
from gateway.policy.authoriser import AccessDecision, AccessRequest
from gateway.registries.snapshot import DeclaredTool
from gateway.server.rest.operation_table import OPERATIONS
from tests.support.gateways.grant_projects import grant_policy, request_grant
from tests.support.gateways.projects import (
    CallCounter,
    GatewayUnderTest,
    Person,
    base_documents,
    catalogue,
    http_tool,
    start_call_counter,
    start_gateway,
    tokens_of,
    write_project,
)

pytestmark = pytest.mark.anyio

FULL = Person("full", ("user",), "acme")
SEES = Person("sees", ("viewer",), "acme")
REQUESTERS = {each.id: Person(each.id.lower(), ("viewer",), "acme") for each in OPERATIONS if "{grant}" in each.path}
"""For each operation that changes a grant, a person who requests one."""
PEOPLE = [FULL, SEES, *REQUESTERS.values()]
POLICY = """\
p, role:user, *, tool:*, discover|invoke, internal, allow
p, role:viewer, *, tool:*, discover, internal, allow
"""
MCP_METHODS = ("server/discover", "tools/list", "resources/list", "resources/templates/list", "ping", "prompts/list")


@dataclass
class Log:
    """Calls the authoriser allowed, calls that ran, and calls that tried to run without a decision."""

    allowed: set[tuple[str, str]] = field(default_factory=set)
    ran: list[str] = field(default_factory=list)
    tripped: list[str] = field(default_factory=list)


class LoggingAuthoriser:
    """An authoriser that logs which call each decision was for."""

    def __init__(self, authoriser: Any, log: Log) -> None:
        self._authoriser = authoriser
        self._log = log

    def roles_of(self, names: frozenset[str]) -> frozenset[str]:
        found: frozenset[str] = self._authoriser.roles_of(names)
        return found

    def decide(self, request: AccessRequest) -> AccessDecision:
        decision: AccessDecision = self._authoriser.decide(request)
        try:
            call = get_current_call()
        except LookupError:  # a list request, or a check whether the tool exists
            return decision
        if decision.allowed and request.action == "invoke" and request.names == call.principal.names:
            self._log.allowed.add((call.id, request.object))
        return decision


class Tripwire:
    def __init__(self, backend: Backend, log: Log) -> None:
        self._backend = backend
        self._log = log

    async def run(self, call: Invocation) -> Any:
        served = get_current_call()
        is_decided = served.decision == "allow" and served.id == call.id and served.identity == call.tool
        if not is_decided or (call.id, f"tool:{call.tool}") not in self._log.allowed:
            self._log.tripped.append(call.tool)
            raise AssertionError("a backend was reached without a decision")
        self._log.ran.append(call.tool)
        return await self._backend.run(call)

    async def close(self) -> None:
        await self._backend.close()


class TripwireFactory(BackendFactory):
    """Builds the backends of a project, each behind a tripwire."""

    def __init__(self, log: Log) -> None:
        super().__init__(Secrets({}, Path()), ())
        self._log = log

    def build(self, tool: DeclaredTool, spec: ToolSpec, *, artifact: type) -> Backend:
        return Tripwire(super().build(tool, spec, artifact=artifact), self._log)


@asynccontextmanager
async def start_with_tripwires(
    tmp_path: Path, backend: CallCounter, publish: Callable[..., Any] = publishing.build_live_revision
) -> AsyncIterator[tuple[GatewayUnderTest, Log]]:
    tools = [http_tool("plain", backend.port), http_tool("writing", backend.port, flags=["writes"])]
    tools.append(http_tool("large", backend.port, output={"inline": False}))
    documents = [*base_documents(["tokens"]), tokens_of(PEOPLE), *tools]
    documents.append(catalogue("desk", ["role:user", "role:viewer"], ["*"], hidden=["writing"]))
    documents.append(grant_policy(roles=["role:viewer"], to=["role:user", "role:viewer"], approvers=["role:user"]))
    write_project(tmp_path / "p", documents, policy=POLICY)
    log = Log()
    async with start_gateway(tmp_path / "p", tmp_path / "data", people=PEOPLE) as gateway:
        old = gateway.running.service.published.access
        access = Access(old.snapshot, LoggingAuthoriser(old.authoriser, log))
        backends = TripwireFactory(log)
        published, unavailable_tools = publish(
            gateway.running.assembled,
            access,
            backends=backends,
            journal=gateway.running.service.journal,
            shared=StageState(),
            controls=gateway.running.controlled.controls,
        )
        assert unavailable_tools == []
        gateway.running.service.publish(published)
        try:
            yield gateway, log
        finally:
            await published.close()
            await backends.close()


async def call_everything(gateway: GatewayUnderTest, person: Person, status: int) -> None:
    """Call every tool over every transport, alone, in turns and in sessions; expect this REST status."""
    caller = gateway.caller(person)
    arguments = {"text": "x"}
    turn = (await caller.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
    session = await caller.begin_legacy("desk")
    for name in ("plain", "writing", "large"):
        answers = [
            await caller.modern_call("desk", name, arguments),
            await caller.modern_call("desk", name, arguments, **{"gateway/idempotencyKey": f"{person.name}-{name}"}),
            await caller.legacy("desk", "tools/call", {"name": name, "arguments": arguments}, session=session),
            await caller.rest_call("desk", name, arguments),
            await caller.rest_call("desk", name, arguments, idempotency_key=f"{person.name}-{name}-rest"),
            await caller.rest("POST", f"/v1/turns/{turn}/calls", {"tool": name, "arguments": arguments}),
        ]
        assert {each.status for each in answers[:3]} == {200}, answers
        assert {each.status for each in answers[3:]} == {status}, answers


async def test_no_backend_runs_without_a_decision_for_that_very_call(tmp_path: Path) -> None:
    async with start_call_counter() as backend, start_with_tripwires(tmp_path, backend) as (gateway, log):
        await call_everything(gateway, SEES, 403)
        assert (log.ran, log.tripped, backend.requests) == ([], [], [])

        await call_everything(gateway, FULL, 200)
        assert log.tripped == []
        assert len(log.ran) == len(backend.requests) == 18


AUTHORISES = """\
            if call.seen is None:
                self.authorize(call)
            else:
                self._authorize_observed(call, call.seen)
"""
"""What the gate does before it decides: everything else of it stays."""


def mutate_publish(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`publish` with a copy of the handlers whose gate makes no check."""
    source = Path(str(gating.__file__)).read_text(encoding="utf-8")
    assert source.count(AUTHORISES) == 1, "the gate authorises in exactly one statement before it decides"
    without = source.replace(AUTHORISES, "")
    _load_module("gates_that_ask_nobody", without, monkeypatch)
    handling = Path(str(handlers.__file__)).read_text(encoding="utf-8")
    asking = handling.replace("from gateway.engine.gates.guard import", "from gates_that_ask_nobody import")
    assert asking != handling
    _load_module("handlers_that_ask_nobody", asking, monkeypatch)
    text = Path(str(publishing.__file__)).read_text(encoding="utf-8")
    assert {"HandlerDependencies", "build_handler"} <= set(re.findall(r"\w+", text))
    changed = f"{text}\nfrom handlers_that_ask_nobody import HandlerDependencies, build_handler\n"
    publish: Callable[..., Any] = _load_module("publishing_for_nobody", changed, monkeypatch).build_live_revision
    return publish


def _load_module(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(source, name, "exec"), module.__dict__)
    return module


async def test_tripwire_notices_handlers_without_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        start_call_counter() as backend,
        start_with_tripwires(tmp_path, backend, mutate_publish(monkeypatch)) as (gateway, log),
    ):
        await call_everything(gateway, SEES, 424)
        await call_everything(gateway, FULL, 424)

        assert len(log.tripped) == 36
        assert (log.ran, backend.requests) == ([], [])


CALLING = {"callTool", "callInTurn"}
BODIES = {
    "openTurn": {"catalogue": "desk"},
    "endTurn": {"as": "ack"},
    "queryArtifact": {"method": "grep", "arguments": {"pattern": "x"}},
    "requestGrant": {"subject": "user:full", "role": "role:viewer", "seconds": 60, "reason": "INC-42"},
    **{operation: {} for operation in REQUESTERS},
}


def every_other_operation(ids: dict[str, str], grants: dict[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Call every REST operation that is no tool call, ending the turn last. Each change of a grant has its own."""
    for operation in sorted(OPERATIONS, key=lambda each: each.id == "endTurn"):
        if operation.id not in CALLING and operation.id != "followTurn" and "{approval}" not in operation.path:
            known = {**ids, "grant": grants[operation.id]} if operation.id in grants else ids
            yield operation.method, operation.path.format(**known), BODIES.get(operation.id)


async def test_nothing_but_a_call_reaches_a_backend(tmp_path: Path) -> None:
    async with start_call_counter() as backend, start_with_tripwires(tmp_path, backend) as (gateway, log):
        caller = gateway.caller(FULL)
        turn = (await caller.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
        called = await caller.rest("POST", f"/v1/turns/{turn}/calls", {"tool": "large", "arguments": {"text": "x"}})
        made = called.json["callId"]
        assert log.ran == ["large"]

        for method in MCP_METHODS:
            await caller.modern("desk", method)
        uri = f"artifact://calls/{turn}/{made}"
        read = await caller.modern("desk", "resources/read", {"uri": uri})
        query = await caller.modern_call(
            "desk", "artifact_grep", {"callId": made, "pattern": "x"}, **{"gateway/turn": turn}
        )
        ids = {"catalogue": "desk", "name": "plain", "turn": turn, "callId": made}
        requested = {
            id: await request_grant(gateway.caller(person), f"user:{person.name}", role="role:viewer")
            for id, person in REQUESTERS.items()
        }
        assert {each.status for each in requested.values()} == {201}, [each.body for each in requested.values()]
        grants = {id: reply.json["id"] for id, reply in requested.items()}
        sent = list(every_other_operation(ids, grants))
        answers = [await caller.rest(method, path, body) for method, path, body in sent]

        assert "result" in read.json, read.body
        assert "result" in query.json, query.body
        assert {path for _, path, _ in sent if "/grants" in path} == {
            "/v1/grants",
            *(f"/v1/grants/{grants[f'{verb}Grant']}/{verb}" for verb in ("approve", "refuse", "revoke")),
        }
        assert {each.status for each in answers} <= {200, 201}, [each.body[:200] for each in answers]
        assert (log.ran, log.tripped, len(backend.requests)) == (["large"], [], 1)


async def test_a_replayed_call_does_not_run_again(tmp_path: Path) -> None:
    async with start_call_counter() as backend, start_with_tripwires(tmp_path, backend) as (gateway, log):
        caller = gateway.caller(FULL)
        first = await caller.rest_call("desk", "writing", {"text": "x"}, idempotency_key="k")
        again = await caller.rest_call("desk", "writing", {"text": "x"}, idempotency_key="k")

        assert again.json["callId"] == first.json["callId"]
        assert len(backend.requests) == len(log.ran) == 1
