"""No result and no backend is reached without a decision for that request and its caller.

The probes are found by walking everything that is published. Each control is enabled alone, so that it alone has to
refuse everything; and a guard that allows everything must be noticed at every kind of handler.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.engine.call import Call
from gateway.engine.gates.guard import CallGuard
from gateway.engine.turns.turn import Turn
from gateway.model.turns.events import now
from gateway.policy.stop_list import Stop, StopTarget
from tests.support.gateways.projects import Document, document, start_call_counter
from tests.support.gateways.published_names import (
    DENIED,
    EVERYTHING,
    FULL,
    LISTING,
    READING,
    UNINVOKED,
    Probe,
    Walk,
    is_refused,
    methods_of_mcp,
    start_walk,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

KINDS = ("tool", "query", "prompt", "resource", "completion", "artifact", "REST")


def rule(name: str, check: Mapping[str, Any], match: Mapping[str, Any] = EVERYTHING) -> Document:
    return document("GateRule", name, {"description": "A test.", "match": dict(match), "check": dict(check)})


async def with_policy(walk: Walk) -> None:
    await walk.switch_on(policy=DENIED + UNINVOKED)


async def with_reading_denied(walk: Walk) -> None:
    await walk.switch_on(policy=DENIED)


async def with_stop_list(walk: Walk) -> None:
    target = StopTarget("principal", f"user:{FULL.name}")
    await walk.gateway.running.controlled.stops.add(Stop(target, "a test", "user:ops", now()))


async def with_rules(walk: Walk) -> None:
    check = {"type": "arguments", "require": 'caller.subject == "user:nobody"', "message": "closed"}
    await walk.switch_on(rule("closed", check))


async def with_quota(walk: Walk) -> None:
    await walk.switch_on(rule("quota", {"type": "quota", "limit": 1, "per": "1d", "by": ["subject"]}))
    await use_up(walk)


async def with_rate(walk: Walk) -> None:
    await walk.switch_on(rule("rate", {"type": "rate", "limit": 1, "per": "1h", "by": ["subject"]}))
    await use_up(walk)


async def use_up(walk: Walk) -> None:
    assert not is_refused(await walk.caller.rest_call("desk", "text_of", {"text": "text"}))


async def find_reached(walk: Walk, probes: list[Probe]) -> list[str]:
    """Return the probes that got content, or reached a backend or a server."""
    found = []
    for probe in probes:
        before = (len(walk.backend.requests), len(walk.asked))
        is_harmless = await probe.is_harmless()
        if not is_harmless or (len(walk.backend.requests), len(walk.asked)) != before:
            found.append(probe.name)
    return found


@pytest.mark.parametrize(
    "switch_on", [with_policy, with_stop_list, with_rules, with_quota, with_rate], ids=lambda each: each.__name__
)
async def test_each_control_alone_refuses_everything(
    tmp_path: Path, switch_on: Callable[[Walk], Awaitable[None]]
) -> None:
    async with start_call_counter() as backend, start_walk(tmp_path, backend) as walk:
        probes = list(walk.probes())
        assert {probe.name.partition(" ")[0] for probe in probes} == set(KINDS)
        await switch_on(walk)
        assert await find_reached(walk, probes) == []


async def test_denied_reading_leaves_calls_alone(tmp_path: Path) -> None:
    async with start_call_counter() as backend, start_walk(tmp_path, backend) as walk:
        probes = list(walk.probes())
        await with_reading_denied(walk)
        found = await find_reached(walk, probes)
        assert found == [probe.name for probe in probes if probe.name.startswith("tool ")]


async def test_every_answer_was_decided_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[tuple[str, str]] = []
    decide = CallGuard.decide

    async def noted(self: CallGuard, call: Call, args: Any, **more: Any) -> Any:
        counted = await decide(self, call, args, **more)
        assert call.decision == "allow"
        decided.append((call.principal.subject, call.tool))
        return counted

    monkeypatch.setattr(CallGuard, "decide", noted)
    async with start_call_counter() as backend, start_walk(tmp_path, backend) as walk:
        silent = []
        for probe in walk.probes():
            before = len(decided)
            if not await probe.is_harmless() and len(decided) == before:
                silent.append(probe.name)
        assert silent == []
        assert {subject for subject, _ in decided} == {f"user:{FULL.name}"}
        assert {*walk.desk.queries, "artifact_content"} <= {tool for _, tool in decided}


async def test_a_guard_that_lets_everything_through_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def let_through(self: CallGuard, call: Call, args: Any, **more: Any) -> None:
        call.identity = self.identity
        call.set_decision("allow", "permitted", None)

    async with start_call_counter() as backend, start_walk(tmp_path, backend) as walk:
        probes = list(walk.probes())
        await with_rules(walk)
        monkeypatch.setattr(CallGuard, "decide", let_through)
        found = await find_reached(walk, probes)
        assert {name.partition(" ")[0] for name in found} == set(KINDS)
        assert {name.split()[1] for name in found if name.startswith("query ")} == set(walk.desk.queries)


async def test_query_tools_without_a_guard_return_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start_call_counter() as backend, start_walk(tmp_path, backend) as walk:
        monkeypatch.setattr(Turn, "query_guard", None)
        probes = [probe for probe in walk.probes() if probe.name.startswith("query ") and probe.name.endswith("modern")]
        assert len(probes) == len(walk.desk.queries)
        assert await find_reached(walk, probes) == []


def test_every_method_of_mcp_is_known_to_the_walk() -> None:
    assert methods_of_mcp() == READING | LISTING
