"""A refusal holds for a moment: the same caller gets it again without another decision, and nothing else changes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.engine.call import Call, HoldPolicy
from gateway.engine.records.known_refusals import HOLDS_FOR, MOST, KnownRefusals
from gateway.engine.stages.turn_stages import LoopGuard
from gateway.engine.turns.turn import Turn
from gateway.model.caller import Principal
from gateway.model.primitives.json_fingerprint import call_identity
from gateway.model.schema.schema import Schema
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_call import ToolCall
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.storage.refusal_store import Refusal
from tests.engine.records.test_auditor import gate
from tests.engine.service_gateway import ANA, BOB, Gateway, Plan, running

pytestmark = pytest.mark.anyio

LIMITED = {"status": "limited", "kind": "rate", "rule": "fair-use", "retryAfter": 9}


class Refusals:
    """Known refusals with a clock that stands still, in a gateway whose store counts every refusal."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.now = 0
        self.known = KnownRefusals(gateway.store, clock=lambda: self.now)

    async def turn(self, principal: Principal = ANA, **changes: Any) -> Turn:
        turns = self.gateway.service.turns
        turn = await turns.create_single_call_turn(principal, "desk", self.gateway.service.published)
        if changes:
            turn.catalogue = replace(turn.catalogue, **changes)  # type: ignore[misc] # of this turn alone
        return turn

    def call(self, turn: Turn, args: dict[str, Any] | None = None, **fields: Any) -> Call:
        checksum, text, exact = call_identity("pay", args or {})
        declared = turn.published.tool("desk", "pay")
        made = Call("c", "pay", args or {}, turn.principal, "desk", "r", turn=turn, checksum=checksum)
        return replace(made, **{"args_text": text, "exact": exact, "declared": declared, **fields})

    async def refuse(
        self,
        args: dict[str, Any] | None = None,
        *,
        turn: Turn | None = None,
        depends_on_arguments: bool = False,
        reason: str = "rate-exceeded",
    ) -> None:
        """Let the guard refuse a call."""
        turn = turn or await self.turn()
        call = self.call(turn, args, depends_on_arguments=depends_on_arguments)
        call.set_decision("deny", "rate-exceeded", "fair-use")
        call.rules, call.limited, call.error = ("fair-use",), LIMITED, "E_QUOTA_EXCEEDED"
        record = ToolCall.from_result(
            id="c",
            tool="pay",
            args=args or {},
            checksum=call.checksum,
            is_error=True,
            results=Tokenizable("too many calls"),
            from_artifact_tool=False,
            inline=True,
            trusted=False,
            created=0,
            completed=0,
        )
        self.known.remember(turn, call, reason, record)

    async def repeats(self, args: dict[str, Any] | None = None, **fields: Any) -> bool:
        turn = await self.turn()
        return self.known.repeat(turn, self.call(turn, args, **fields)) is not None


@asynccontextmanager
async def refusals(folder: Path) -> AsyncIterator[Refusals]:
    async with running(folder, Plan().tool("pay", "paid")) as gateway:
        await gateway.store.refuse(Refusal(ANA, "rate-exceeded", 0, ()))  # from here on it counts them in memory
        yield Refusals(gateway)


async def test_call_is_refused_as_the_one_before(tmp_path: Path) -> None:
    async with refusals(tmp_path) as refused:
        await refused.refuse({"note": "a"})
        turn = await refused.turn()
        call = refused.call(turn, {"note": "b"})

        record = refused.known.repeat(turn, call)

        assert record is not None
        assert (record.id, record.args, record.checksum) == (call.id, {"note": "b"}, call.checksum)
        assert (record.is_error, str(record.results.render())) == (True, "too many calls")  # type: ignore[union-attr]
        assert (call.decision, call.reason, call.because) == ("deny", "rate-exceeded", "fair-use")
        assert (call.rules, call.limited, call.error) == (("fair-use",), LIMITED, "E_QUOTA_EXCEEDED")
        assert call.is_refused
        assert [each.id for each in turn.calls] == ["c"]
        assert (await refused.gateway.store.refusals_by_reason())["rate-exceeded"] == (0, 2)


async def test_refusal_holds_for_a_moment(tmp_path: Path) -> None:
    async with refusals(tmp_path) as refused:
        await refused.refuse()

        refused.now = HOLDS_FOR - 1
        assert await refused.repeats()
        refused.now = HOLDS_FOR
        assert not await refused.repeats()
        refused.now = 0
        assert not await refused.repeats()  # it is forgotten


async def test_refusal_because_of_arguments_holds_for_the_same_arguments(tmp_path: Path) -> None:
    async with refusals(tmp_path) as refused:
        await refused.refuse({"note": "a"}, depends_on_arguments=True)

        assert await refused.repeats({"note": "a"})
        assert not await refused.repeats({"note": "b"})


async def test_others_are_not_refused(tmp_path: Path) -> None:
    async with refusals(tmp_path) as refused:
        await refused.refuse()
        others = [BOB, replace(ANA, tenant="other"), replace(ANA, roles=frozenset({"role:staff", "role:lead"}))]

        for principal in others:
            turn = await refused.turn(principal)
            assert refused.known.repeat(turn, refused.call(turn)) is None
        opened = await refused.gateway.service.turns.open(ANA, "desk")
        assert refused.known.repeat(opened, refused.call(opened)) is None
        assert not await refused.repeats(revision="r2")
        assert not await refused.repeats(catalogue="vault")


@pytest.mark.parametrize(
    "fields",
    [
        {"idempotency_key": "k"},
        {"holding": HoldPolicy(waits=False)},
        {"declared": None},
        {"checksum": "", "exact": None},
    ],
)
async def test_guard_decides_about_calls_that_are_not_like_it(fields: dict[str, Any], tmp_path: Path) -> None:
    async with refusals(tmp_path) as refused:
        await refused.refuse()

        assert not await refused.repeats(**fields)


@pytest.mark.parametrize("reason", ["check-failed", "confirmation-impossible", "backend-spared", "audit-unavailable"])
async def test_refusal_that_may_be_over_is_not_repeated(reason: str, tmp_path: Path) -> None:
    async with refusals(tmp_path) as refused:
        await refused.refuse(reason=reason)

        assert len(refused.known) == 0


async def test_stages_and_listeners_receive_every_call(tmp_path: Path) -> None:
    async def stage(ctx: Any, next: Any) -> None:
        await next()

    async with refusals(tmp_path) as refused:
        await refused.refuse()
        for name in ("dispatch_input", "dispatch_output"):
            turn = await refused.turn(**{name: [stage]})  # type: ignore[arg-type] # names of its fields
            assert refused.known.repeat(turn, refused.call(turn)) is None
            await refused.refuse(turn=turn)  # nor is such a refusal remembered

        refused.gateway.service.buses.observability.on("*", lambda event: None)
        assert not await refused.repeats()


async def test_repeated_calls_are_refused_by_the_loop_guard(tmp_path: Path) -> None:
    async with refusals(tmp_path) as refused:
        await refused.refuse()
        turn = await refused.turn(loop_guard=LoopGuard(1))
        call = refused.call(turn)

        assert refused.known.repeat(turn, call) is not None
        assert refused.known.repeat(turn, call) is None  # it is in the turn now


async def test_invalid_arguments_are_refused_as_such(tmp_path: Path) -> None:
    def check(args: Any) -> None:
        pass

    def run(args: Any, ctx: Any, meta: Any) -> str:
        return "paid"

    async with refusals(tmp_path) as refused:
        await refused.refuse({"note": "a"})
        strict = Schema({"type": "object", "required": ["note"]})
        for schema, args in ((strict, {}), (Schema({"type": "object"}, checks=(check,)), {"note": "b"})):
            tool = Tool(name="pay", description="Pays.", input_schema=schema, handler=run)
            turn = await refused.turn(registry=ToolRegistry([tool]))
            assert refused.known.repeat(turn, refused.call(turn, args)) is None
        turn = await refused.turn(registry=ToolRegistry([]))
        assert refused.known.repeat(turn, refused.call(turn)) is None
        assert await refused.repeats({"note": "a"})  # these were valid a moment ago


async def test_refusal_that_needs_an_entry_of_its_own_is_decided(tmp_path: Path) -> None:
    async with refusals(tmp_path) as refused:
        turn = await refused.turn(BOB)  # the store has not counted a refusal of his
        await refused.refuse(turn=turn)

        assert refused.known.repeat(turn, refused.call(turn)) is None


async def test_number_of_known_refusals_is_bounded(tmp_path: Path) -> None:
    async with refusals(tmp_path) as refused:
        turn = await refused.turn()
        for number in range(MOST + 100):
            await refused.refuse({"n": number}, turn=turn, depends_on_arguments=True)

        assert not await refused.repeats({"n": 0})
        assert await refused.repeats({"n": MOST + 99})
        assert len(refused.known) <= MOST

        refused.now = HOLDS_FOR
        for number in range(MOST // 64 + 1):
            await refused.refuse({"n": -number - 1}, turn=turn, depends_on_arguments=True)
        assert len(refused.known) <= MOST // 64 + 1


async def test_flood_gets_one_answer_and_every_refusal_is_counted(tmp_path: Path) -> None:
    async with running(tmp_path, Plan(gates=gate("deny")).tool("pay", "paid"), most_refusals=3) as gateway:
        settled = [await gateway.service.call_tool(ANA, "desk", "pay", {"n": number}) for number in range(300)]
        kept, counted = (await gateway.store.refusals_by_reason())["rule-denied"]

    first = settled[0]
    assert {str(each.record.results.render()) for each in settled} == {str(first.record.results.render())}  # type: ignore[union-attr]
    assert {(each.reason, each.fault, each.record.is_error) for each in settled} == {(first.reason, first.fault, True)}
    assert len({each.record.id for each in settled}) == len({each.turn.id for each in settled}) == 300
    assert (kept, counted) == (3, 297)
