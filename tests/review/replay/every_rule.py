"""A project with every kind of rule, and random calls to a gateway that serves it."""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from gateway.app.app import App
from gateway.app.project import LoadedProject, ProjectFolders, load_project
from gateway.engine.call import HoldPolicy
from gateway.engine.turns.turn import Turn
from gateway.errors import GatewayError
from gateway.model.caller import Credential, Principal, Question
from gateway.policy.stop_list import Stop, StopTarget
from tests.support.gateways.projects import (
    Document,
    Person,
    base_documents,
    catalogue,
    document,
    environ_of,
    start_gateway,
    tokens_of,
    write_project,
)

PACKAGE = "tests.support.tools.text_tools"
PEOPLE = (Person("ana", ("agent",)), Person("liz", ("lead",)))
POLICY = """\
p, role:agent, *, tool:*, discover, community, allow
p, role:agent, *, tool:*, invoke|read, community, allow
p, role:agent, *, tool:denied, invoke, community, deny
p, role:agent, *, tool:hidden, discover|invoke, community, deny
p, role:lead, *, tool:*, approve, community, allow
p, role:lead, *, tool:special, invoke, community, allow
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 40},
        "amount": {"type": "number", "default": 1},
        "kind": {"type": "string", "enum": ["big", "small"]},
    },
    "required": ["text"],
    "additionalProperties": False,
}
NOBODY_ASKS = HoldPolicy(waits=False)


def tool(name: str, *, function: str = "echo", flags: Sequence[str] = (), **more: Any) -> Document:
    backend = {"type": "python", "entrypoint": f"{PACKAGE}:{function}", "run": "loop"}
    spec = {"version": "1.0.0", "description": f"Does {name}.", "input": {"schema": SCHEMA}, "backend": backend}
    return document("Tool", name, {**spec, "trust": {"tier": "internal", "flags": list(flags)}, **more})


def rule(name: str, check: Mapping[str, Any], *, tools: Sequence[str] = (), **more: Any) -> Document:
    match = {"tools": list(tools or [name])}
    return document("GateRule", name, {"description": f"{name}.", "match": match, "check": dict(check), **more})


EVERY_DAY = [{"days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"], "from": "00:00", "to": "24:00"}]
TODAY = datetime.now(UTC).date().isoformat()
CHECKS: dict[str, dict[str, Any]] = {
    "rate": {"type": "rate", "limit": 4, "per": "1s", "burst": 1, "by": ["tenant", "tool"]},
    "rate_of_all": {"type": "rate", "limit": 600, "per": "1m", "by": ["catalogue"]},
    "quota": {"type": "quota", "limit": 6, "per": "1h"},
    "quota_of_amounts": {"type": "quota", "limit": 600, "per": "1h", "sum": "args.amount"},
    "quota_with_approval": {
        **{"type": "quota", "limit": 5, "per": "1h", "onExhausted": "hold"},
        "approval": {"from": ["role:lead"], "timeout": "10m", "reason": "many calls"},
    },
    "loop": {"type": "loop", "sameCall": 2},
    "loop_of_caller": {"type": "loop", "sameCall": 4, "scope": "caller", "within": "1h"},
    "budget": {"type": "budget", "calls": 12},
    "budget_of_bytes": {"type": "budget", "bytes": "500B"},
    "budget_of_caller": {"type": "budget", "calls": 40, "bytes": "2KiB", "scope": "caller", "within": "1h"},
    "window_open": {"type": "window", "timezone": "UTC", "open": EVERY_DAY},
    "window_shut": {"type": "window", "timezone": "UTC", "open": EVERY_DAY, "closed": [TODAY]},
    "window_holds": {"type": "window", "timezone": "UTC", "open": EVERY_DAY, "closed": [TODAY], "outside": "hold"},
    "approved": {"type": "approval", "from": ["role:lead"], "timeout": "10m", "reason": "money"},
    "confirmed": {"type": "confirmation", "reason": "sure?"},
    "permitted": {"type": "permission", "action": "invoke", "object": "tool:special"},
    "small_amounts": {"type": "arguments", "require": "args.amount < 500", "message": "too much"},
    "tainted": {"type": "arguments", "require": 'turn.saw("untrusted-output") == false', "message": "tainted"},
    "seen": {"type": "arguments", "require": 'caller.saw("untrusted-output", "30m") == false', "message": "seen"},
    "history": {
        "type": "arguments",
        "require": 'turn.calls.exists(c, c.tool == "failing") == false',
        "message": "a call failed",
    },
}
OBSERVED = {"watched": {"type": "rate", "limit": 1, "per": "1h"}}
OTHERS = ("plain", "fetch", "secret", "send", "failing", "denied", "special", "stopped", "hidden")
NAMES = (*CHECKS, *OBSERVED, *OTHERS)


def documents(*, replay: Mapping[str, Any] | None = None, **checks: Mapping[str, Any] | None) -> list[Document]:
    """Return the project; `checks` replace those of rules, `None` removes one."""
    chosen = {**CHECKS, **{name: each for name, each in checks.items() if each is not None}}
    chosen = {name: each for name, each in chosen.items() if checks.get(name, each) is not None}
    artifact = {"description": "Text.", "base": "text", "queries": "all"}
    tools = [tool(name) for name in (*CHECKS, *OBSERVED, "plain", "denied", "special", "stopped", "hidden")]
    tools += [
        tool("fetch", function="page", flags=["untrusted-output"], output={"artifact": "page"}),
        tool("secret", function="page", output={"artifact": "secrets"}),
        tool("send", flags=["egress", "writes"]),
        tool("failing", function="fail"),
    ]
    made = base_documents(["tokens"])
    if replay is not None:
        next(each for each in made if each["kind"] == "Storage")["spec"]["replay"] = dict(replay)
    return [
        *made,
        tokens_of(PEOPLE),
        *(
            document("TrustFlag", name, {"description": f"{name}.", "hint": {"openWorld": True}})
            for name in ("egress", "untrusted-output")
        ),
        document("ArtifactClass", "page", artifact),
        document("ArtifactClass", "secrets", {**artifact, "flow": {"blockedBy": ["egress"]}}),
        *tools,
        *(catalogue(name, ["role:agent"], NAMES) for name in ("desk", "other")),
        *(rule(name, each) for name, each in chosen.items()),
        *(rule(name, each, mode="observe") for name, each in OBSERVED.items()),
    ]


def write_every_rule(folder: Path, *, policy: str = POLICY, **changes: Any) -> Path:
    return write_project(folder, documents(**changes), policy=policy)


def load(project: Path) -> LoadedProject:
    environ = {**environ_of(PEOPLE), "GATEWAY_PYTHON_PACKAGES": PACKAGE}
    found = load_project(ProjectFolders.from_folder(project), environ=environ, today=datetime.now(UTC).date())
    assert not found.has_errors, [str(each) for each in found.diagnostics]
    return found


class AgreeingClient:
    """A client that confirms every call, or none."""

    waits_for_answer = True
    wants_progress = False

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def can_answer(self, question: Question) -> bool:
        return True

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        return {name: {"action": self._answer, "content": {}} for name in questions}


@dataclass
class RandomCallers:
    """Callers who call tools at random, in turns and without, and approvers who decide about what is held."""

    app: App
    seed: int
    made: int = 0
    turns: list[tuple[Principal, Turn]] = field(default_factory=list)
    results: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.approver = Principal("user:liz", frozenset({"role:lead"}))

    async def make_calls(self, number: int) -> None:
        stop = Stop(StopTarget("tool", "stopped"), "a test", "user:liz", datetime.now(UTC))
        await self.app.controlled.stops.add(stop)
        for _ in range(number):
            await self.make_call(self.made)
            self.made += 1

    async def make_call(self, number: int) -> None:
        chance = self.random
        name = chance.choice(NAMES)
        group = number // 2_000  # later callers begin with nothing used up
        principal = Principal(
            f"user:{group}-{chance.randrange(4)}",
            frozenset({"role:agent", *(["role:lead"] if chance.random() < 0.1 else [])}),
            chance.choice([None, "acme"]),
            credential=Credential("token", "tests", chance.choice(["one", "two"])),
        )
        arguments: dict[str, Any] = {"text": chance.choice("ab")}
        if chance.random() < 0.3:
            arguments["amount"] = chance.choice([1, 501])
        if chance.random() < 0.03:
            arguments["unknown"] = 1
        where = chance.choice(["desk", "other"])
        try:
            if chance.random() < 0.5:
                await self._call_alone(principal, where, name, arguments)
            else:
                await self._call_in_turn(principal, where, name, arguments)
        except GatewayError:
            return  # the tool does not exist for the caller

    async def _call_alone(self, principal: Principal, where: str, name: str, arguments: dict[str, Any]) -> None:
        client: Any = AgreeingClient(self.random.choice(["accept", "decline"])) if name == "confirmed" else None
        service = self.app.service
        called = await service.call_tool(principal, where, name, arguments, holding=NOBODY_ASKS, client=client)
        if called.pending is not None:
            await self._decide(principal, where, name, arguments, called.pending)

    async def _decide(
        self, principal: Principal, where: str, name: str, arguments: dict[str, Any], pending: Mapping[str, Any]
    ) -> None:
        votes: list[Literal["grant", "refuse"] | None] = ["grant", "refuse", None]
        vote = self.random.choice(votes)
        if vote is None:
            return
        for each in pending["approvals"]:
            await self.app.controlled.approvals.decide(each["id"], self.approver, vote)
        await self.app.service.call_tool(principal, where, name, arguments, holding=NOBODY_ASKS)

    async def _call_in_turn(self, principal: Principal, where: str, name: str, arguments: dict[str, Any]) -> None:
        chance, service = self.random, self.app.service
        if not self.turns or chance.random() < 0.1:
            self.turns.append((principal, await service.turns.open(principal, where)))
            self.turns = self.turns[-6:]
        _, turn = chance.choice(self.turns)
        known = self.results.setdefault(turn.id, [])
        if known and chance.random() < 0.2:
            query = {"callId": chance.choice(known), "pattern": "1"}
            await service.call_in_turn(turn, "artifact_grep", query, holding=NOBODY_ASKS)
            return
        outcome = await service.call_in_turn(turn, name, arguments, holding=NOBODY_ASKS)
        if name in ("fetch", "secret") and not outcome.record.is_error:
            known.append(outcome.record.id)


@asynccontextmanager
async def serving(project: Path, data: Path, *, seed: int = 1, **settings: Any) -> AsyncIterator[RandomCallers]:
    environ = {"GATEWAY_PYTHON_PACKAGES": PACKAGE}
    options: dict[str, Any] = {"python_packages": (PACKAGE,), "max_refusals": 1_000_000, **settings}
    async with start_gateway(project, data, people=PEOPLE, environ=environ, **options) as gateway:
        yield RandomCallers(gateway.running, seed)
