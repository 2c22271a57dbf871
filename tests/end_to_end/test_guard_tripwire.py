"""No result byte and no backend is reached without a decision for that very request and its caller.

What can be asked for is found by walking what is published. Each control is switched on alone, so that it alone has to
refuse everything; and a guard that lets everything through must be noticed at every kind of handler.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from secured import Document, counting, document
from walked import (
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
    walking,
)

from gateway.core.events import now
from gateway.governance.quarantines import Quarantine, Target
from gateway.serving.current import ServedCall
from gateway.serving.gating import Gate
from gateway.serving.turns import Turn

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
    target = Target("principal", f"user:{FULL.name}")
    await walk.gateway.running.controlled.quarantines.add(Quarantine(target, "a test", "user:ops", now()))


async def with_rules(walk: Walk) -> None:
    check = {"type": "arguments", "require": 'caller.subject == "user:nobody"', "message": "closed"}
    await walk.switch_on(rule("closed", check))


async def with_quota(walk: Walk) -> None:
    await walk.switch_on(rule("quota", {"type": "quota", "limit": 1, "per": "1d", "by": ["subject"]}))
    await used_up(walk)


async def with_rate(walk: Walk) -> None:
    await walk.switch_on(rule("rate", {"type": "rate", "limit": 1, "per": "1h", "by": ["subject"]}))
    await used_up(walk)


async def used_up(walk: Walk) -> None:
    assert not is_refused(await walk.caller.rest_call("desk", "text_of", {"text": "text"}))


async def reached(walk: Walk, probes: list[Probe]) -> list[str]:
    """The probes that were told something, or reached a backend or a server."""
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
    async with counting() as backend, walking(tmp_path, backend) as walk:
        probes = list(walk.probes())
        assert {probe.name.partition(" ")[0] for probe in probes} == set(KINDS)
        await switch_on(walk)
        assert await reached(walk, probes) == []


async def test_denied_reading_leaves_calls_alone(tmp_path: Path) -> None:
    async with counting() as backend, walking(tmp_path, backend) as walk:
        probes = list(walk.probes())
        await with_reading_denied(walk)
        found = await reached(walk, probes)
        assert found == [probe.name for probe in probes if probe.name.startswith("tool ")]


async def test_everything_that_is_told_was_decided_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[tuple[str, str]] = []
    decide = Gate.decide

    async def noted(self: Gate, call: ServedCall, args: Any, **more: Any) -> Any:
        counted = await decide(self, call, args, **more)
        assert call.decision == "allow"
        decided.append((call.principal.subject, call.tool))
        return counted

    monkeypatch.setattr(Gate, "decide", noted)
    async with counting() as backend, walking(tmp_path, backend) as walk:
        silent = []
        for probe in walk.probes():
            before = len(decided)
            if not await probe.is_harmless() and len(decided) == before:
                silent.append(probe.name)
        assert silent == []
        assert {subject for subject, _ in decided} == {f"user:{FULL.name}"}
        assert {*walk.desk.queries, "artifact_content"} <= {tool for _, tool in decided}


async def test_a_guard_that_lets_everything_through_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def let_through(self: Gate, call: ServedCall, args: Any, **more: Any) -> None:
        call.identity = self.identity
        call.decide("allow", "permitted", None)

    async with counting() as backend, walking(tmp_path, backend) as walk:
        probes = list(walk.probes())
        await with_rules(walk)
        monkeypatch.setattr(Gate, "decide", let_through)
        found = await reached(walk, probes)
        assert {name.partition(" ")[0] for name in found} == set(KINDS)
        assert {name.split()[1] for name in found if name.startswith("query ")} == set(walk.desk.queries)


async def test_query_tools_without_a_guard_tell_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make: Any = Turn._made

    def unguarded(self: Turn) -> Any:
        ctx = make(self)
        ctx.query_guard = None
        return ctx

    async with counting() as backend, walking(tmp_path, backend) as walk:
        monkeypatch.setattr(Turn, "_made", unguarded)
        probes = [probe for probe in walk.probes() if probe.name.startswith("query ") and probe.name.endswith("modern")]
        assert len(probes) == len(walk.desk.queries)
        assert await reached(walk, probes) == []


def test_every_method_of_mcp_is_known_to_the_walk() -> None:
    assert methods_of_mcp() == READING | LISTING
