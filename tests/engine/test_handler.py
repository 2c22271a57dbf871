"""The generated handler: authorise first, then gates, then the start record, then the backend; and its results."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
from gateway.artifacts.indexed_reader import IndexedReader
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.call import Call, call_context, get_current_call
from gateway.engine.handler import CONSEQUENTIAL_FLAGS, Handler, HandlerDependencies, build_handler
from gateway.errors import NotPermitted, UnknownTool
from gateway.model.caller import Principal
from gateway.model.primitives.containers import DottedDict
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.backend import BackendError, Invocation
from gateway.policy.rules.gate_checks import GateCheck, Judgement
from gateway.policy.rules.gate_rules import GateRule
from gateway.registries.snapshot import ArtifactClass, Deprecation
from gateway.registries.tool_selection import Selector
from gateway.storage.call_store import CallFilter, StoredCall
from tests.engine.service_gateway import ANA, EVE, HERE, Gateway, Plan, Run, running, trust

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class FixedCheck(GateCheck):
    """A check that always gives the same result, or breaks."""

    decision: Any

    def judge(self, scope: Any, may: Any) -> Judgement:
        if self.decision == "break":
            raise RuntimeError("the check is broken")
        return Judgement(self.decision, f"it says {self.decision}")


def rule(name: str, decision: str, mode: Any = "enforce", tools: tuple[str, ...] = ("pay",)) -> GateRule:
    return GateRule(name, Selector(tools=tools), FixedCheck(decision), HERE, mode=mode)


class Steps:
    """The steps, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.stored: list[StoredCall] = []

    def run(self, gateway: list[Gateway]) -> Run:
        async def run(call: Invocation) -> Any:
            found, _ = await gateway[0].store.list_calls(CallFilter(status="started"), limit=10)
            self.stored += found
            self.seen.append(f"ran {call.tool} as {get_current_call().decision}")
            return "paid"

        return run


async def record_of(gateway: Gateway, principal: Principal = ANA, tool: str = "pay") -> StoredCall:
    settled = await gateway.service.call_tool(principal, "desk", tool, {"amount": 1})
    found = await gateway.store.find_call(settled.record.id, principal)
    assert found is not None
    return found


def bare_handler(gateway: Gateway, name: str, refuse: Callable[[], None] | None = None) -> Handler:
    """The handler itself, without the steps before it."""
    published = gateway.service.published
    tool, run = gateway.plan.tools[name]
    handling = HandlerDependencies(published.access, "desk", published.types, gateway.service.journal)
    return build_handler(tool, handling, run=run, refuse=refuse)


@pytest.fixture
def steps() -> Steps:
    return Steps()


async def test_allowed_call_runs_once_under_its_decision(steps: Steps, tmp_path: Path) -> None:
    started: list[Gateway] = []
    async with running(tmp_path, Plan().tool("pay", steps.run(started))) as gateway:
        started.append(gateway)
        record = await record_of(gateway)

    assert steps.seen == ["ran pay as allow"]
    assert (record.decision, record.because, record.is_error) == ("allow", "the default", False)
    assert steps.stored == []


async def test_denied_call_does_not_run_and_only_the_record_has_the_reason(steps: Steps, tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("pay", steps.run([]), trust=trust("writes"))) as gateway:
        gateway.grants.rows = {("pay", "discover"): True, ("pay", "invoke"): False}
        record = await record_of(gateway)

    assert steps.seen == []
    assert (record.decision, record.because, record.is_error) == ("deny", "a row says so", True)
    assert "row" not in str(record.results[0].text)


async def test_tool_of_an_uncallable_tier_is_refused_before_the_policy(steps: Steps, tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("pay", steps.run([]), trust=trust(callable=False))) as gateway:
        record = await record_of(gateway)

    assert steps.seen == []
    assert (record.decision, record.because) == ("deny", "tier open")
    assert record.results[0].text == "pay cannot be called right now"


async def test_handler_refuses_a_tool_past_its_last_day_even_if_a_call_still_reaches_it(tmp_path: Path) -> None:
    past = Deprecation(date(2020, 1, 1), date(2020, 1, 2), "other")
    plan = Plan().tool("pay", "paid", lifecycle="deprecated", deprecation=past)
    async with running(tmp_path, plan) as gateway:
        with pytest.raises(UnknownTool):
            await gateway.service.call_tool(ANA, "desk", "pay", {})
        turn = await gateway.service.turns.open(ANA, "desk")
        handle = bare_handler(gateway, "pay")
        call = Call("c1", "pay", {}, ANA, "desk", "r", turn=turn)
        with call_context(call), pytest.raises(NotPermitted, match="right now"):
            await handle({}, turn.ctx, DottedDict())

    assert (call.decision, call.because) == ("deny", "deprecated")


@pytest.mark.parametrize("is_spared", [True, False])
async def test_backend_that_is_spared_is_refused_before_the_start_is_on_record(
    steps: Steps, tmp_path: Path, is_spared: bool
) -> None:
    def refuse() -> None:
        if is_spared:
            raise BackendError("unavailable", "it rests", help="later")

    started: list[Gateway] = []
    async with running(tmp_path, Plan().tool("pay", steps.run(started), trust=trust("writes"))) as gateway:
        started.append(gateway)
        turn = await gateway.service.turns.open(ANA, "desk")
        handle = bare_handler(gateway, "pay", refuse)
        call = Call("c1", "pay", {}, ANA, "desk", "r", turn=turn)
        with call_context(call), pytest.raises(BackendError) if is_spared else nullcontext():
            await handle({}, turn.ctx, DottedDict())

    if is_spared:
        assert (call.decision, call.reason, call.error) == ("deny", "backend-spared", "E_BACKEND_FAILED")
        assert (steps.seen, call.is_started, call.course.has_begun) == ([], False, False)
    else:
        assert (call.decision, call.is_started, call.course.has_begun) == ("allow", True, True)
        assert steps.seen == ["ran pay as allow"]


def gates_of(*rules: GateRule) -> dict[str, GateRule]:
    return {each.name: each for each in rules}


GATES: dict[str, tuple[dict[str, GateRule], str, str | None]] = {
    "one that allows": (gates_of(rule("a", "allow")), "allow", "the default"),
    "one that only observes": (gates_of(rule("a", "deny", "observe")), "allow", "the default"),
    "one that is off": (gates_of(rule("a", "deny", "disabled")), "allow", "the default"),
    "one about another tool": (gates_of(rule("a", "deny", tools=("other",))), "allow", "the default"),
    "one that denies": (gates_of(rule("a", "deny")), "deny", "a at tests.yaml:1"),
    "one that holds": (gates_of(rule("a", "hold")), "hold", "a at tests.yaml:1"),
    "denial beats holding": (gates_of(rule("a", "hold"), rule("b", "deny")), "deny", "b at tests.yaml:1"),
    "holding beats allowing": (gates_of(rule("a", "allow"), rule("b", "hold")), "hold", "b at tests.yaml:1"),
    "one that breaks": (gates_of(rule("a", "break")), "deny", "a at tests.yaml:1"),
}


@pytest.mark.parametrize(("gates", "decision", "because"), GATES.values(), ids=GATES)
async def test_gates_decide_before_anything_runs(
    gates: dict[str, GateRule], decision: str, because: str | None, steps: Steps, tmp_path: Path
) -> None:
    started: list[Gateway] = []
    async with running(tmp_path, Plan(gates=gates).tool("pay", steps.run(started))) as gateway:
        started.append(gateway)
        record = await record_of(gateway)

    assert (record.decision, record.because) == (decision, because)
    assert record.is_error is (decision != "allow")
    assert steps.seen == (["ran pay as allow"] if decision == "allow" else [])


async def test_policy_is_asked_before_any_gate(tmp_path: Path) -> None:
    plan = Plan(gates=gates_of(rule("a", "hold"))).tool("pay", "paid")
    async with running(tmp_path, plan) as gateway:
        gateway.grants.rows = {("pay", "discover"): True, ("pay", "invoke"): False}

        assert (await record_of(gateway)).because == "a row says so"


@pytest.mark.parametrize("flag", sorted(CONSEQUENTIAL_FLAGS))
async def test_consequential_call_is_on_record_before_it_runs(flag: str, steps: Steps, tmp_path: Path) -> None:
    started: list[Gateway] = []
    async with running(tmp_path, Plan().tool("pay", steps.run(started), trust=trust(flag))) as gateway:
        started.append(gateway)
        record = await record_of(gateway)

    assert [each.id for each in steps.stored] == [record.id]
    assert (steps.stored[0].status, steps.stored[0].decision) == ("started", "allow")
    assert record.status == "settled"


async def test_outside_of_a_served_call_no_handler_does_anything(steps: Steps, tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("pay", steps.run([]))) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        handle = bare_handler(gateway, "pay")
        with pytest.raises(LookupError):
            await handle({}, turn.ctx, DottedDict())

    assert steps.seen == []


async def test_handler_authorises_the_caller_and_not_the_owner_of_the_turn(steps: Steps, tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("pay", steps.run([]))) as gateway:
        gateway.grants.default = False
        turn = await gateway.service.turns.open(ANA, "desk")
        handle = bare_handler(gateway, "pay")
        call = Call("c1", "pay", {}, EVE, "desk", "r", turn=turn)
        with call_context(call), pytest.raises(NotPermitted):
            await handle({}, turn.ctx, DottedDict())

    assert (call.decision, steps.seen) == ("deny", [])


# --- results of a call ---


class Lines:
    """A reader without an index."""

    def line(self, index: int) -> str | None:
        return "one" if index == 0 else None

    def byte_length(self) -> int:
        return 3

    def line_count(self) -> int:
        return 1

    def read_all(self) -> str:
        return "one"


def indexed() -> SpooledArtifact:
    reader = InMemoryReader(b"one")
    assert isinstance(reader, IndexedReader)
    return SpooledArtifact(reader)


def yields() -> Iterator[tuple[str, Any, Any]]:
    yield "text", "one", "one"
    yield "bytes", b"one", "one"
    yield "bytearray", bytearray(b"one"), "one"
    yield "memoryview", memoryview(b"one"), "one"
    yield "artifact with an index", indexed(), "one"
    yield "artifact without one", SpooledArtifact(Lines()), "one"
    yield "list of artifacts", [indexed(), indexed()], ["one", "one"]


@pytest.mark.parametrize(("value", "expected"), [each[1:] for each in yields()], ids=[each[0] for each in yields()])
async def test_result_is_kept_and_read_again_after_the_turn(value: Any, expected: Any, tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("pay", value)) as gateway:
        settled = await gateway.service.call_tool(ANA, "desk", "pay", {})
        assert not settled.record.is_error, settled.record.results
        _, record = await gateway.service.find_call(ANA, settled.record.id)
        results: Any = record.results
        found = [await each.as_string() for each in results] if isinstance(results, list) else await results.as_string()

    assert found == expected


@pytest.mark.parametrize(
    "value", [3, None, {"a": 1}, [], [1], object], ids=["3", "None", "dict", "empty", "list", "class"]
)
async def test_result_of_no_known_shape_is_an_error(value: Any, tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("pay", value)) as gateway:
        settled = await gateway.service.call_tool(ANA, "desk", "pay", {})

    assert settled.record.is_error
    assert isinstance(settled.record.results, Tokenizable)


async def test_result_larger_than_allowed_is_an_error_and_nothing_of_it_is_kept(tmp_path: Path) -> None:
    async with running(tmp_path, Plan(max_output=10).tool("pay", "x" * 11).tool("fits", "x" * 10)) as gateway:
        large = await gateway.service.call_tool(ANA, "desk", "pay", {})
        fits = await gateway.service.call_tool(ANA, "desk", "fits", {})

    assert (large.record.is_error, fits.record.is_error) == (True, False)


async def test_artifact_of_the_tools_own_making_is_masked_like_any_other(tmp_path: Path) -> None:
    masked = ArtifactClass("masked", SpooledJsonArtifact, HERE, redact=("$.password",))
    own = SpooledJsonArtifact(InMemoryReader(b'{"user":"kim","password":"hunter2"}'))
    async with running(tmp_path, Plan(artifacts={"masked": masked}).tool("pay", own, artifact="masked")) as gateway:
        settled = await gateway.service.call_tool(ANA, "desk", "pay", {})
        results: Any = settled.record.results
        shown = await results.as_string()

    assert "kim" in shown
    assert "hunter2" not in shown
