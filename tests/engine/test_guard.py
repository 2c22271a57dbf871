"""The guard of a call: kill switch, rules, approvals and limits, and the answer and record when one of them refuses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gateway.approvals.errors import (
    ApprovalExpired,
    ApprovalMismatch,
    ApprovalPending,
    ApprovalRefused,
    ApprovalUsed,
    ApprovalVoid,
    ConfirmationImpossible,
    ConfirmationPending,
    ConfirmationRefused,
)
from gateway.approvals.service import ApprovalService
from gateway.engine.call import Call, HoldPolicy, call_context
from gateway.engine.caller_interaction import CallerCannotAnswer
from gateway.engine.gates.definition_guard import DefinitionChanged, DefinitionGuard
from gateway.engine.gates.guard import GuardDependencies
from gateway.engine.handler import HandlerDependencies, build_handler
from gateway.engine.turns.implicit_turns import ImplicitTurns
from gateway.engine.turns.turn import Turn
from gateway.engine.turns.turn_store import SharedTurnState
from gateway.errors import NotPermitted, RuleDenied, RuleHeld, StoreUnavailable
from gateway.model.caller import Principal
from gateway.model.primitives.containers import DottedDict
from gateway.model.turns.events import now
from gateway.policy.bundle_validity import ConfigExpired, Validity
from gateway.policy.limits import Limiter, LimitExceeded, LimitKey
from gateway.policy.rules.conditions import compile_condition
from gateway.policy.rules.gate_checks import (
    ApprovalCheck,
    BudgetCheck,
    ConfirmationCheck,
    GateCheck,
    Judgement,
    LoopCheck,
    QuotaCheck,
    RateCheck,
    WindowCheck,
)
from gateway.policy.rules.gate_rules import GateRule
from gateway.policy.rules.turn_state import CallBounds, InvalidTurnState, load_turn_state
from gateway.policy.stop_list import CallQuarantined, Stop, StopTarget
from gateway.registries.snapshot import DeclaredTool
from gateway.registries.tool_selection import Selector
from gateway.storage.cache_invalidation import FileChangeSignal
from gateway.storage.call_store import CallReservation
from gateway.storage.rate_table import RateTable
from gateway.storage.sql.approvals import SqlApprovalStore
from gateway.storage.sql.flags_seen_by_caller import StoredSightings
from gateway.storage.sql.quotas import SqlQuotas
from gateway.storage.sql.stop_list import SqlStopList
from tests.engine.service_gateway import ANA, HERE, Gateway, Plan, running, trust

pytestmark = pytest.mark.anyio

LEA = Principal("user:lea", frozenset({"role:lead"}), "acme")
AT_ONCE = timedelta(0)
HOUR = timedelta(hours=1)


class FixedCheck(GateCheck):
    """A check with a fixed result."""

    def __init__(self, decision: Any) -> None:
        self.decision = decision

    def judge(self, scope: Any, may: Any) -> Judgement:
        return Judgement(self.decision, f"it says {self.decision}")


class Clock:
    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def __call__(self) -> datetime:
        return now() + self.ahead


async def journaled(call: Call, tool: DeclaredTool) -> None:
    """Record a start at once."""


@dataclass
class Desk:
    """One gated tool, `pay`, called through its handler directly, so that its exceptions arrive unchanged."""

    gateway: Gateway
    turn: Turn
    approvals: ApprovalService
    quarantines: SqlStopList
    limits: Limiter
    clock: Clock
    leads: set[str]
    rules: dict[str, GateRule]
    revision: list[str] = field(default_factory=lambda: ["r1" * 32])
    journal: Callable[[Call, DeclaredTool], Awaitable[None]] = journaled
    ran: list[str] = field(default_factory=list)

    @property
    def controls(self) -> GuardDependencies:
        shared = SharedTurnState(self.gateway.store)
        return GuardDependencies(self.approvals, self.limits, self.quarantines, lambda: self.revision[0], turns=shared)

    async def call(self, call: Call | None = None, *, controls: GuardDependencies | None = None) -> Call:
        call = call or self.new_call()
        await self.handle(call, controls)
        return call

    async def handle(self, call: Call, controls: GuardDependencies | None = None) -> Any:
        published = self.gateway.service.published
        tool, _ = self.gateway.plan.tools["pay"]

        async def run(invocation: Any) -> str:
            self.ran.append(call.id)
            return "paid"

        handling = HandlerDependencies(
            published.access, "desk", published.types, self.journal, controls or self.controls
        )
        handler = build_handler(tool, handling, run=run, definition="d" * 64)
        with call_context(call):
            return await handler(call.args, self.turn.ctx, DottedDict())

    def new_call(self, id: str = "c1", **fields: Any) -> Call:
        checksum = fields.pop("checksum", "same")
        return Call(id, "pay", {"amount": 1}, ANA, "desk", "r1" * 32, turn=self.turn, checksum=checksum, **fields)

    async def refused(self, error: type[Exception], **options: Any) -> Call:
        """Make a call that is refused with this error and did not run."""
        call = self.new_call()
        with pytest.raises(error):
            await self.call(call, **options)
        assert self.ran == []
        return call

    async def vote(self, vote: Any, *, by: Principal = LEA) -> None:
        records, _ = await self.approvals.page(by, state="pending")
        await self.approvals.decide(records[0].id, by, vote)


@asynccontextmanager
async def desk(
    folder: Path, *checks: GateCheck | GateRule, hold_for: timedelta = AT_ONCE, **fields: Any
) -> AsyncIterator[Desk]:
    rules = {f"rule-{n}": rule(f"rule-{n}", check, hold_for) for n, check in enumerate(checks)}
    plan = Plan(gates=rules).tool("pay", "paid", **fields)
    async with running(folder, plan) as gateway, AsyncExitStack() as closing:
        database = folder / "records.db"
        notices = FileChangeSignal(database)
        closing.callback(notices.close)
        clock, leads = Clock(), {"user:lea"}
        store = gateway.store
        quarantines = SqlStopList(store.writer, notices, clock=now)
        closing.callback(quarantines.close)
        limits = Limiter(RateTable(database), SqlQuotas(store.writer, clock=now))
        closing.callback(limits.close)
        approvals = ApprovalService(
            SqlApprovalStore(store.writer, store.reader),
            held=lambda who: who.names if who.subject in leads else frozenset({who.subject}),
            served=lambda: gateway.service.published.snapshot.revision,
            clock=clock,
            look_every=0.01,
        )
        closing.push_async_callback(approvals.close)
        turn = await gateway.service.turns.open(ANA, "desk")
        yield Desk(gateway, turn, approvals, quarantines, limits, clock, leads, rules)


def rule(name: str, check: GateCheck | GateRule, hold_for: timedelta = AT_ONCE) -> GateRule:
    if isinstance(check, GateRule):
        return check
    return GateRule(name, Selector(tools=("pay",)), check, HERE, hold_for=hold_for)


ASKS_LEADS = ApprovalCheck(("role:lead",), "money leaves")


# --- the kill switch ---


@pytest.mark.parametrize("target", ["tool:pay", "principal:user:ana", "upstream:bank"])
async def test_quarantined_call_does_not_run(target: str, tmp_path: Path) -> None:
    async with desk(tmp_path, upstream="bank") as found:
        await found.call()
        found.ran.clear()
        await found.quarantines.add(Stop(StopTarget.parse(target), "leaks", "os:ops", now()))
        call = await found.refused(CallQuarantined)
        await found.quarantines.lift(StopTarget.parse(target), reason="mended", by="os:ops")
        await found.call()

    assert (call.decision, call.reason, call.because) == ("deny", "quarantined", f"quarantine of {target}")
    assert call.error == "E_QUARANTINED"
    assert found.ran == ["c1"]


async def test_approval_does_not_outlive_the_definition_it_was_given_for(tmp_path: Path) -> None:
    definition_guard = DefinitionGuard()
    pinned: dict[str, Any] = {"upstream": "bank", "remote_name": "pay", "pinned_digest": "a" * 64}
    async with desk(tmp_path, ASKS_LEADS, **pinned) as found:
        controls = replace(found.controls, definition_guard=definition_guard)
        await found.refused(ApprovalPending, controls=controls)
        await found.vote("grant")
        definition_guard.compare("bank", [found.gateway.plan.tools["pay"][0]], {"pay": "b" * 64})
        call = await found.refused(DefinitionChanged, controls=controls)

    assert (call.decision, call.reason, call.because) == ("deny", "definition-changed", "changed at bank")
    assert call.error == "E_DEFINITION_CHANGED"


async def test_call_whose_tool_changes_while_people_are_asked_does_not_run(tmp_path: Path) -> None:
    definition_guard = DefinitionGuard()
    pinned: dict[str, Any] = {"upstream": "bank", "remote_name": "pay", "pinned_digest": "a" * 64}
    async with desk(tmp_path, ASKS_LEADS, hold_for=HOUR, **pinned) as found:
        controls = replace(found.controls, definition_guard=definition_guard)
        calling = asyncio.create_task(found.refused(DefinitionChanged, controls=controls))
        async with asyncio.timeout(5):
            while not (await found.approvals.page(LEA, state="pending"))[0]:
                await asyncio.sleep(0.01)
        definition_guard.compare("bank", [found.gateway.plan.tools["pay"][0]], {"pay": "b" * 64})
        await found.vote("grant")
        call = await calling

    assert call.reason == "definition-changed"


# --- validity of the live revision ---


async def test_approval_does_not_outlive_the_bundle(tmp_path: Path) -> None:
    validity = Validity(grace=HOUR, until=now() + HOUR)
    async with desk(tmp_path, ASKS_LEADS, trust=trust("writes")) as found:
        controls = replace(found.controls, validity=validity)
        await found.refused(ApprovalPending, controls=controls)
        await found.vote("grant")
        validity.until = now() - HOUR / 2
        call = await found.refused(ConfigExpired, controls=controls)
        validity.until = now() + HOUR
        await found.call(controls=controls)

    assert (call.decision, call.reason) == ("deny", "config-expired")
    assert call.error == "E_CONFIG_EXPIRED"
    assert found.ran == ["c1"]


async def test_call_that_changes_nothing_runs_in_the_grace_and_no_longer(tmp_path: Path) -> None:
    validity = Validity(grace=HOUR, until=now() - HOUR / 2)
    async with desk(tmp_path) as found:
        await found.call(controls=replace(found.controls, validity=validity))
        found.ran.clear()
        validity.until = now() - HOUR * 2
        await found.refused(ConfigExpired, controls=replace(found.controls, validity=validity))


# --- rules ---


REASONS: dict[str, tuple[GateCheck, str, str]] = {
    "denied": (FixedCheck("deny"), "deny", "rule-denied"),
    "held": (FixedCheck("hold"), "hold", "rule-held"),
    "window": (WindowCheck(ZoneInfo("UTC"), (), outside="deny"), "deny", "window-closed"),
    "window that holds": (WindowCheck(ZoneInfo("UTC"), (), outside="hold"), "hold", "window-closed"),
    "loop": (LoopCheck(0), "deny", "loop-stopped"),
    "budget": (BudgetCheck(calls=0), "deny", "budget-spent"),
}


@pytest.mark.parametrize(("check", "decision", "reason"), REASONS.values(), ids=REASONS)
async def test_refusal_names_the_rule_and_takes_no_place_in_the_turn(
    check: GateCheck, decision: str, reason: str, tmp_path: Path
) -> None:
    async with desk(tmp_path, check) as found:
        call = await found.refused(RuleDenied if decision == "deny" else RuleHeld)

    assert (call.decision, call.reason, call.rules) == (decision, reason, ("rule-0",))
    assert call.position == str(HERE)
    assert call.turn_state.count_calls("same") == 0
    assert call.error == ("E_RULE_DENIED" if decision == "deny" else "E_RULE_HELD")


async def test_rate_that_only_observes_is_named_by_a_call_above_it(tmp_path: Path) -> None:
    watching = replace(rule("watch", RateCheck(1, HOUR)), mode="observe")
    async with desk(tmp_path, watching) as found:
        first, second = [await found.call() for _ in range(2)]

    assert (first.observed, second.observed) == ((), ("watch",))
    assert len(found.ran) == 2


async def test_rules_that_allow_are_named_and_those_that_observe_are_kept(tmp_path: Path) -> None:
    async with desk(tmp_path, FixedCheck("allow")) as found:
        observing = replace(rule("watch", FixedCheck("deny")), mode="observe")
        found.gateway.publish(gates={**found.rules, "watch": observing})
        call = await found.call()

    assert (call.decision, call.reason, call.observed) == ("allow", "rule-allowed", ("watch",))
    assert call.turn_state.count_calls("same") == 1


async def test_rules_of_which_none_is_about_these_arguments_leave_the_policys_word(tmp_path: Path) -> None:
    async with desk(tmp_path, FixedCheck("deny")) as found:
        when, problems = compile_condition("args.amount > 100")
        assert problems == []
        found.gateway.publish(gates={"large": replace(rule("large", FixedCheck("deny")), when=when)})
        call = await found.call()

    assert (call.decision, call.reason) == ("allow", "permitted")
    assert call.turn_state.count_calls("same") == 1


# --- approvals ---


async def test_held_call_states_what_it_waits_for_and_runs_once_it_is_approved(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS) as found:
        held = await found.refused(ApprovalPending)
        await found.vote("grant")
        call = await found.call()
        again = found.new_call("c2")
        with pytest.raises(ApprovalPending):
            await found.call(again)

    assert (held.decision, held.reason, held.because) == ("hold", "approval-pending", f"rule-0 at {HERE}")
    assert held.pending is not None
    [waits] = held.pending["approvals"]
    assert (held.pending["status"], waits["rule"], waits["reason"]) == ("pending", "rule-0", "money leaves")
    assert waits["expiresAt"].endswith("Z")
    assert held.turn_state.count_calls("same") == 1
    assert (call.decision, call.reason, call.rules) == ("allow", "approval-approved", ("rule-0",))
    assert [each.state for each in call.approvals] == ["used"]
    assert found.ran == ["c1"]


class Sometimes(ApprovalCheck):
    """Holds as long as `ON` is set."""

    def judge(self, scope: Any, may: Any) -> Judgement:
        return super().judge(scope, may) if ON else Judgement("allow", "not now")


ON: list[bool] = []


async def test_call_picks_up_the_approval_that_an_earlier_one_waited_for(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS) as found:
        held = await found.refused(ApprovalPending)
        ids = tuple(each.id for each in held.approvals)
        waiting = found.new_call("c2", holding=HoldPolicy(approvals=ids))
        with pytest.raises(ApprovalPending):
            await found.call(waiting)
        await found.vote("grant")
        ran = await found.call(found.new_call("c3", holding=HoldPolicy(approvals=ids)))
        used = found.new_call("c4", holding=HoldPolicy(approvals=ids))
        with pytest.raises(ApprovalUsed):
            await found.call(used)

    assert (waiting.decision, waiting.reason) == ("hold", "approval-pending")
    assert (ran.decision, ran.reason, ran.because) == ("allow", "approval-approved", f"rule-0 at {HERE}, approved")
    assert (used.decision, used.reason) == ("deny", "approval-mismatch")
    assert found.ran == ["c3"]


async def test_what_a_rule_held_before_is_picked_up_when_it_holds_no_more(tmp_path: Path) -> None:
    ON.append(True)
    async with desk(tmp_path, Sometimes(("role:lead",), "money leaves")) as found:
        held = await found.refused(ApprovalPending)
        holding = HoldPolicy(approvals=tuple(each.id for each in held.approvals))
        ON.clear()
        waiting = found.new_call("c2", holding=holding)
        with pytest.raises(ApprovalPending):
            await found.call(waiting)
        await found.vote("refuse")
        refused = found.new_call("c3", holding=holding)
        with pytest.raises(ApprovalRefused):
            await found.call(refused)

    assert (refused.decision, refused.reason, refused.rules) == ("deny", "approval-refused", ())
    assert refused.because == "a rule that held it before"
    assert found.ran == []


async def test_picking_up_fails_under_another_revision_even_without_rules(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS) as found:
        held = await found.refused(ApprovalPending)
        await found.vote("grant")
        found.gateway.publish(gates={})
        call = found.new_call("c2", holding=HoldPolicy(approvals=tuple(each.id for each in held.approvals)))
        call.revision = "r2" * 32
        with pytest.raises(ApprovalMismatch):
            await found.call(call)

    assert (call.decision, call.reason, call.because) == ("deny", "approval-mismatch", "revision")
    assert found.ran == []


async def test_call_that_does_not_wait_is_pending_at_once(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS, hold_for=HOUR) as found, asyncio.timeout(20):
        call = found.new_call(holding=HoldPolicy(waits=False))
        with pytest.raises(ApprovalPending):
            await found.call(call)

    assert call.reason == "approval-pending"


# --- confirmations by the caller ---


CONFIRMS = ConfirmationCheck("money leaves")


@dataclass
class AnsweringClient:
    """A client that gives a fixed answer."""

    action: str = "accept"
    waits_for_answer: bool = True
    can: bool = True
    fails: Exception | None = None
    asked: list[Any] = field(default_factory=list)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def send_progress(self, progress: float, total: float | None, message: str | None) -> None: ...

    def send_log(self, level: Any, data: Any, logger: str | None) -> None: ...

    def can_answer(self, question: Any) -> bool:
        return self.can

    async def ask(self, questions: Any) -> Any:
        self.asked.append(questions["confirm"])
        if self.fails is not None:
            raise self.fails
        if self.action == "never":
            await asyncio.Event().wait()
        return {"confirm": {"action": self.action}}


async def test_caller_that_stays_is_asked_and_the_call_runs(tmp_path: Path) -> None:
    async with desk(tmp_path, CONFIRMS) as found:
        client = AnsweringClient()
        call = await found.call(found.new_call(client=client))

    assert (call.decision, call.reason, call.rules) == ("allow", "confirmed", ("rule-0",))
    assert call.because == f"rule-0 at {HERE}, confirmed by the caller"
    assert "- amount: 1" in client.asked[0].params["message"]
    assert call.approvals == ()
    assert found.ran == ["c1"]


UNCONFIRMED: dict[str, tuple[Any, type[Exception], str]] = {
    "declines": (AnsweringClient("decline"), ConfirmationRefused, "confirmation-refused"),
    "closes the question": (AnsweringClient("cancel"), ConfirmationRefused, "confirmation-refused"),
    "cannot be asked": (AnsweringClient(can=False), ConfirmationImpossible, "confirmation-impossible"),
    "is not there": (None, ConfirmationImpossible, "confirmation-impossible"),
    "fails": (AnsweringClient(fails=CallerCannotAnswer("gone")), ConfirmationImpossible, "confirmation-impossible"),
    "never answers": (AnsweringClient("never"), ConfirmationImpossible, "confirmation-impossible"),
}


@pytest.mark.parametrize(("client", "error", "reason"), UNCONFIRMED.values(), ids=UNCONFIRMED)
async def test_call_does_not_run_if_its_caller(
    client: Any, error: type[Exception], reason: str, tmp_path: Path
) -> None:
    async with desk(tmp_path, replace(CONFIRMS, timeout=timedelta(milliseconds=50))) as found:
        call = found.new_call(client=client)
        with pytest.raises(error):
            await found.call(call)

    assert (call.decision, call.reason, found.ran) == ("deny", reason, [])
    assert call.turn_state.count_calls("same") == 0


async def test_caller_that_comes_back_is_asked_about_one_action(tmp_path: Path) -> None:
    async with desk(tmp_path, CONFIRMS) as found:
        held = found.new_call(client=AnsweringClient(waits_for_answer=False))
        with pytest.raises(ConfirmationPending):
            await found.call(held)
        assert held.unconfirmed is not None
        accepted = HoldPolicy(answer="accept", about=held.unconfirmed.digest)
        elsewhere = found.new_call("c2", client=AnsweringClient(waits_for_answer=False), holding=accepted)
        elsewhere.args = {"amount": 2}
        with pytest.raises(ConfirmationPending):
            await found.call(elsewhere)
        done = await found.call(found.new_call("c3", holding=accepted))

    assert (held.decision, held.reason) == ("hold", "confirmation-pending")
    assert (done.decision, done.reason) == ("allow", "confirmed")
    assert found.ran == ["c3"]


async def test_confirmation_needs_no_approver(tmp_path: Path) -> None:
    async with desk(tmp_path, CONFIRMS) as found:
        controls = replace(found.controls, approvals=None)
        call = await found.call(found.new_call(client=AnsweringClient()), controls=controls)

    assert call.reason == "confirmed"


async def test_every_rule_that_holds_wants_its_own_approval(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS, replace(ASKS_LEADS, reason="twice")) as found:
        await found.refused(ApprovalPending)
        await found.vote("grant")
        call = await found.refused(ApprovalPending)
        await found.vote("grant")
        await found.call()

    assert call.rules == ("rule-0", "rule-1")
    assert found.ran == ["c1"]


async def test_refused_approval_refuses_the_call(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS) as found:
        await found.refused(ApprovalPending)
        await found.vote("refuse")
        call = await found.refused(ApprovalRefused)

    assert (call.decision, call.reason) == ("deny", "approval-refused")


async def test_undecided_call_is_refused_after_its_time(tmp_path: Path) -> None:
    async with desk(tmp_path, replace(ASKS_LEADS, timeout=timedelta(minutes=1)), hold_for=HOUR) as found:
        call = found.new_call()
        waiting = asyncio.create_task(found.call(call))
        await until_pending(found)
        found.clock.ahead = timedelta(minutes=2)
        await found.approvals.sweep()
        with pytest.raises(ApprovalExpired):
            await waiting

    assert (call.decision, call.reason) == ("deny", "approval-expired")


async def test_approval_of_an_approver_who_lost_the_role_is_void(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS) as found:
        await found.refused(ApprovalPending)
        await found.vote("grant")
        found.leads.clear()
        call = await found.refused(ApprovalVoid)

    assert (call.decision, call.reason) == ("deny", "approval-mismatch")


@pytest.mark.parametrize("other", [FixedCheck("hold"), WindowCheck(ZoneInfo("UTC"), ())], ids=["says hold", "window"])
async def test_hold_without_approvers_creates_no_approval(other: GateCheck, tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS, other) as found:
        call = await found.refused(RuleHeld)
        records, _ = await found.approvals.page(LEA)

    assert call.decision == "hold"
    assert records == []


async def test_held_call_stays_held_if_no_approver_can_be_asked(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS) as found:
        call = await found.refused(RuleHeld, controls=GuardDependencies())

    assert (call.decision, call.reason) == ("hold", "rule-held")


async def until_pending(found: Desk) -> None:
    async with asyncio.timeout(30):
        while not (await found.approvals.page(LEA, state="pending"))[0]:
            await asyncio.sleep(0)


async def approved_meanwhile(found: Desk, change: Callable[[], object]) -> Call:
    """A call that waits while something changes, and is approved only afterwards."""
    call = found.new_call()
    waiting = asyncio.create_task(found.call(call))
    await until_pending(found)
    if isinstance(changing := change(), Awaitable):
        await changing
    await found.vote("grant")
    with pytest.raises((NotPermitted, RuleDenied, ApprovalVoid)):
        await waiting
    assert found.ran == []
    return call


async def test_revision_that_was_published_while_the_call_waited_voids_its_approval(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS, hold_for=HOUR) as found:
        call = await approved_meanwhile(found, lambda: found.revision.insert(0, "r2"))

    assert (call.decision, call.reason) == ("deny", "approval-mismatch")


async def test_permission_that_was_taken_away_while_the_call_waited_counts(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS, hold_for=HOUR) as found:
        call = await approved_meanwhile(found, lambda: found.gateway.grants.rows.update({("pay", "invoke"): False}))

    assert (call.decision, call.reason) == ("deny", "not-permitted")


async def test_rule_that_denies_by_now_counts(tmp_path: Path) -> None:
    check = FixedCheck("allow")
    async with desk(tmp_path, ASKS_LEADS, check, hold_for=HOUR) as found:
        call = await approved_meanwhile(found, lambda: setattr(check, "decision", "deny"))

    assert (call.decision, call.reason, call.rules) == ("deny", "rule-denied", ("rule-1",))
    assert call.turn_state.count_calls("same") == 0


async def test_client_is_notified_for_as_long_as_its_call_waits(tmp_path: Path) -> None:
    notified: list[tuple[float, float | None, str | None]] = []

    class Client:
        loop = asyncio.get_running_loop()
        waits_for_answer = True

        def send_progress(self, progress: float, total: float | None, message: str | None) -> None:
            notified.append((progress, total, message))

        def send_log(self, level: Any, data: Any, logger: str | None) -> None: ...

        def can_answer(self, question: Any) -> bool:
            return False

        async def ask(self, questions: Any) -> Any: ...

    async with desk(tmp_path, ASKS_LEADS, hold_for=HOUR) as found:
        waiting = asyncio.create_task(found.call(found.new_call(client=Client())))
        await until_pending(found)
        await found.vote("grant")
        await waiting

    assert [each[1:] for each in notified][:1] == [(3600.0, "the call waits for approval")]
    assert 0 <= notified[0][0] < 3600


async def test_call_that_is_cancelled_while_it_waits_leaves_its_place(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS, hold_for=HOUR) as found:
        call = found.new_call()
        waiting = asyncio.create_task(found.call(call))
        await until_pending(found)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    assert call.turn_state.count_calls("same") == 0
    assert found.ran == []


# --- turns that other processes serve, too ---


class Full:
    """Turns in which other processes are always a moment faster."""

    def __init__(self) -> None:
        self.asked = 0

    async def read_turn_state(self, turn_id: str) -> bytes | None:
        return None

    async def reserve_call(
        self,
        turn_id: str,
        checksum: str,
        *,
        bounds: CallBounds,
        memory: bytes | None = None,
        knowing: bytes | None = None,
    ) -> CallReservation:
        self.asked += 1
        return CallReservation(False, None)

    async def note(self, *_: Any, **__: Any) -> None: ...


async def test_call_that_others_are_always_faster_than_does_not_run(tmp_path: Path) -> None:
    full = Full()
    async with desk(tmp_path, LoopCheck(2)) as found:
        call = await found.refused(StoreUnavailable, controls=GuardDependencies(turns=SharedTurnState(full)))

        assert (call.decision, call.reason, full.asked) == ("deny", "check-failed", 3)
        assert found.turn.state.count_calls("same") == 0


class CountingStore:
    """The store of a desk, and how often turn states were read and calls reserved."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.reads = self.reservations = 0

    async def read_turn_state(self, turn_id: str) -> bytes | None:
        self.reads += 1
        state: bytes | None = await self._store.read_turn_state(turn_id)
        return state

    async def reserve_call(self, *args: Any, **options: Any) -> Any:
        self.reservations += 1
        return await self._store.reserve_call(*args, **options)

    async def note(self, *args: Any, **options: Any) -> None:
        await self._store.note(*args, **options)


async def test_turn_state_is_read_again_only_after_another_process_came_or_went(tmp_path: Path) -> None:
    since: list[int | None] = [1]
    async with desk(tmp_path, LoopCheck(3)) as found:
        store = CountingStore(found.gateway.store)
        controls = GuardDependencies(turns=SharedTurnState(store, lambda: since[0]))
        await found.call(controls=controls)
        await found.call(controls=controls)
        assert (store.reads, store.reservations) == (1, 0)

        await found.gateway.store.reserve_call(found.turn.id, "same", bounds=CallBounds())  # by a process of the past
        since[0] = 2
        with pytest.raises(RuleDenied):
            await found.call(controls=controls)
        assert (store.reads, found.turn.state.count_calls("same")) == (2, 3)

        since[0] = None  # another process is there
        with pytest.raises(RuleDenied):
            await found.call(controls=controls)
        assert store.reads == 3
    assert len(found.ran) == 2


async def test_turn_that_this_process_opened_is_current_once_it_is_stored(tmp_path: Path) -> None:
    async with desk(tmp_path, LoopCheck(3)) as found:
        store = CountingStore(found.gateway.store)
        shared, turn = SharedTurnState(store, lambda: 1), found.turn
        turn.is_stored = False
        assert shared.is_current(turn)
        turn.is_stored = True
        assert shared.is_current(turn)

        alone: int | None = 2
        shared = SharedTurnState(store, lambda: alone)
        assert not shared.is_current(turn)
        alone = None
        turn.is_stored = False
        assert not shared.is_current(turn)
    assert store.reads == 0


async def test_old_state_that_arrives_late_undoes_nothing(tmp_path: Path) -> None:
    """Two calls read the stored state at once; the first is written before the second has its answer."""

    class SlowStore(CountingStore):
        def __init__(self, store: Any) -> None:
            super().__init__(store)
            self.answers: list[asyncio.Event] = []

        async def read_turn_state(self, turn_id: str) -> bytes | None:
            self.answers.append(asyncio.Event())
            [*_, answer] = self.answers
            state = await super().read_turn_state(turn_id)
            await answer.wait()
            return state

    async with desk(tmp_path, LoopCheck(3)) as found:
        store, turn = SlowStore(found.gateway.store), found.turn
        shared = SharedTurnState(store, lambda: 1)
        turn.state.reserve_call("earlier")
        await shared.keep(turn)
        readers = [asyncio.create_task(shared.refresh(turn)) for _ in range(2)]
        while store.reads < 2:
            await asyncio.sleep(0)
        store.answers[0].set()
        await readers[0]
        turn.state.reserve_call("same")
        await shared.keep(turn)
        known = turn.state.known
        store.answers[1].set()
        await readers[1]

        assert (turn.state.calls, turn.state.count_calls("same")) == (2, 1)
        assert turn.state.known is known


async def test_call_with_effects_is_counted_durably_before_it_runs(tmp_path: Path) -> None:
    async with desk(tmp_path, BudgetCheck(calls=1), trust=trust("writes")) as found:
        store = CountingStore(found.gateway.store)
        controls = GuardDependencies(turns=SharedTurnState(store, lambda: 1))
        await found.call(controls=controls)
        with pytest.raises(RuleDenied):
            await found.call(controls=controls)

        assert store.reservations == 0  # which could overtake states that are written elsewhere
        stored = load_turn_state(await found.gateway.store.read_turn_state(found.turn.id))
        assert stored.calls == 1


async def test_call_with_effects_is_reserved_again_if_another_process_came_meanwhile(tmp_path: Path) -> None:
    since: list[int | None] = [1]

    class Entering(CountingStore):
        async def note(self, *args: Any, **options: Any) -> None:
            await super().note(*args, **options)
            await self._store.reserve_call(found.turn.id, "other", bounds=CallBounds())
            since[0] = None

    async with desk(tmp_path, BudgetCheck(calls=2), trust=trust("writes")) as found:
        store = Entering(found.gateway.store)
        controls = GuardDependencies(turns=SharedTurnState(store, lambda: since[0]))
        await found.call(controls=controls)
        with pytest.raises(RuleDenied):
            await found.call(found.new_call("c2"), controls=controls)

        assert store.reservations == 1
        stored = load_turn_state(await found.gateway.store.read_turn_state(found.turn.id))
        assert stored.calls == found.turn.state.calls == 2
    assert found.ran == ["c1"]


async def test_call_with_effects_does_not_run_or_count_unless_its_count_is_durable(tmp_path: Path) -> None:
    class Failing(CountingStore):
        async def note(self, *args: Any, **options: Any) -> None:
            raise StoreUnavailable("the disk is gone")

    async with desk(tmp_path, BudgetCheck(calls=2), trust=trust("writes")) as found:
        controls = GuardDependencies(turns=SharedTurnState(Failing(found.gateway.store), lambda: 1))
        call = await found.refused(StoreUnavailable, controls=controls)

        assert (call.decision, call.reason) == ("deny", "check-failed")
        assert (found.ran, found.turn.state.calls) == ([], 0)


async def test_calls_that_others_made_while_people_were_asked_count(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS, BudgetCheck(calls=2), hold_for=HOUR) as found:

        async def others_call() -> None:
            for checksum in ("one", "another"):
                await found.gateway.store.reserve_call(found.turn.id, checksum, bounds=CallBounds())

        call = await approved_meanwhile(found, others_call)

    assert (call.decision, call.reason, call.rules) == ("deny", "budget-spent", ("rule-1",))
    assert call.turn_state.calls == 2


async def test_turn_that_is_not_stored_is_counted_where_it_is(tmp_path: Path) -> None:
    async with desk(tmp_path, LoopCheck(1)) as found:
        found.turn = await found.gateway.service.turns.open(ANA, "desk", is_kept=False)
        await found.call()
        with pytest.raises(RuleDenied):
            await found.call(found.new_call("c2"))

    assert found.ran == ["c1"]


async def test_turn_whose_memory_cannot_be_read_runs_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path, LoopCheck(2)) as found:
        spoiling = "UPDATE turns SET memory = 'nonsense'"
        await found.gateway.store.writer.run(lambda connection: connection.execute(spoiling).rowcount)

        call = await found.refused(InvalidTurnState)

        assert (call.decision, call.reason) == ("deny", "check-failed")


# --- limits ---


EXHAUSTED: dict[str, tuple[GateCheck, str, str]] = {
    "rate": (RateCheck(1, HOUR), "deny", "rate-exceeded"),
    "quota": (QuotaCheck(1, HOUR), "deny", "quota-exceeded"),
    "quota that holds": (QuotaCheck(1, HOUR, on_exhausted="hold"), "hold", "quota-exceeded"),
}


@pytest.mark.parametrize(("check", "decision", "reason"), EXHAUSTED.values(), ids=EXHAUSTED)
async def test_call_over_its_limit_states_which_and_when(
    check: GateCheck, decision: str, reason: str, tmp_path: Path
) -> None:
    async with desk(tmp_path, check) as found:
        await found.call()
        found.ran.clear()
        call = await found.refused(LimitExceeded)

    assert (call.decision, call.reason, call.rules) == (decision, reason, ("rule-0",))
    assert call.turn_state.count_calls("same") == 1


async def test_call_that_waits_for_people_is_not_counted_until_it_runs(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS, QuotaCheck(1, HOUR)) as found:
        await found.refused(ApprovalPending)
        await found.refused(ApprovalPending)
        await found.vote("grant")
        await found.call()

    assert found.ran == ["c1"]


async def test_limit_that_stops_a_call_leaves_its_approval_unused(tmp_path: Path) -> None:
    async with desk(tmp_path, ASKS_LEADS, QuotaCheck(1, HOUR)) as found:
        await found.refused(ApprovalPending)
        await found.vote("grant")
        [limit] = found.rules["rule-1"].limits
        await found.limits.acquire([limit], LimitKey(ANA, "pay", "desk"))  # another call was faster
        await found.refused(LimitExceeded)
        [record], _ = await found.approvals.page(LEA)

    assert record.state == "granted"


async def test_denial_beats_holding_among_limits_too(tmp_path: Path) -> None:
    async with desk(tmp_path, QuotaCheck(1, HOUR, on_exhausted="hold"), QuotaCheck(1, HOUR)) as found:
        await found.call()
        found.ran.clear()
        call = await found.refused(LimitExceeded)

    assert call.decision == "deny"


async def test_where_nothing_is_counted_a_limited_call_does_not_run(tmp_path: Path) -> None:
    async with desk(tmp_path, RateCheck(1, HOUR)) as found:
        call = await found.refused(StoreUnavailable, controls=GuardDependencies())

    assert (call.decision, call.reason) == ("deny", "check-failed")
    assert call.error == StoreUnavailable.code


# --- the start record ---


@pytest.mark.parametrize("check", [QuotaCheck(1, HOUR), None], ids=["counted", "not counted"])
async def test_call_whose_start_cannot_be_written_does_not_run_and_costs_nothing(
    check: GateCheck | None, tmp_path: Path
) -> None:
    async def fails(call: Call, tool: DeclaredTool) -> None:
        raise StoreUnavailable("the disk is full")

    async with desk(tmp_path, *([check] if check else []), trust=trust("writes")) as found:
        found.journal = fails
        call = await found.refused(StoreUnavailable)
        found.journal = journaled
        await found.call()

    assert (call.decision, call.reason, call.error) == ("deny", "audit-unavailable", StoreUnavailable.code)
    assert found.ran == ["c1"]
    assert call.turn_state.count_calls("same") == 1


async def test_call_that_is_cancelled_before_its_start_is_written_costs_nothing(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def never(call: Call, tool: DeclaredTool) -> None:
        reached.set()
        await asyncio.Event().wait()

    async with desk(tmp_path, QuotaCheck(1, HOUR), trust=trust("writes")) as found:
        found.journal = never
        call = found.new_call()
        waiting = asyncio.create_task(found.call(call))
        await reached.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        found.journal = journaled
        await found.call()

    assert (call.decision, call.reason) == ("allow", "rule-allowed")
    assert found.ran == ["c1"]


# --- failures ---


@pytest.mark.parametrize(
    ("error", "code"),
    [(StoreUnavailable("secret"), StoreUnavailable.code), (LookupError("secret"), "LookupError")],
    ids=["ours", "foreign"],
)
async def test_failure_of_a_tool_is_kept_by_what_it_is(error: Exception, code: str, tmp_path: Path) -> None:
    async with desk(tmp_path) as found:
        call = found.new_call()

        async def fails(invocation: Any) -> str:
            raise error

        published = found.gateway.service.published
        handling = HandlerDependencies(published.access, "desk", published.types, journaled, found.controls)
        handler = build_handler(found.gateway.plan.tools["pay"][0], handling, run=fails)
        with call_context(call), pytest.raises(type(error)):
            await handler({}, found.turn.ctx, DottedDict())

    assert (call.decision, call.error) == ("allow", code)


# --- state of callers and implicit turns ---


def seeing(flag: str = "writes") -> GateRule:
    """Denies a call if its caller has seen the flag within the last hour."""
    condition, problems = compile_condition(f'caller.saw("{flag}", "1h")')
    assert not problems
    return GateRule("rule-0", Selector(tools=("pay",)), FixedCheck("deny"), HERE, when=condition)


class Unwritable:
    """Sightings and turn states that cannot be written now."""

    async def of(self, principal: Principal) -> dict[str, int]:
        return {}

    async def note(self, *_: Any, **__: Any) -> None:
        raise StoreUnavailable()


async def test_caller_who_has_seen_a_flag_is_known_in_another_turn(tmp_path: Path) -> None:
    async with desk(tmp_path, seeing(), trust=trust("writes")) as found:
        sightings = StoredSightings(found.gateway.store.writer, found.gateway.store.reader, clock=now)
        controls = replace(found.controls, sightings=sightings)
        await found.call(found.new_call("first"), controls=controls)
        found.turn = await found.gateway.service.turns.open(ANA, "desk")
        with pytest.raises(RuleDenied):
            await found.call(found.new_call("second"), controls=controls)

    assert found.ran == ["first"]


@pytest.mark.parametrize("checks", [(), (QuotaCheck(5, HOUR),)], ids=["not counted", "counted"])
async def test_call_whose_sighting_cannot_be_kept_does_not_run(checks: tuple[GateCheck, ...], tmp_path: Path) -> None:
    async with desk(tmp_path, seeing(), *checks, trust=trust("writes")) as found:
        nowhere = await found.refused(StoreUnavailable)
        unwritable = await found.refused(
            StoreUnavailable,
            controls=replace(found.controls, sightings=Unwritable()),
        )

        assert (nowhere.reason, unwritable.reason) == ("check-failed", "check-failed")
        assert found.turn.state.count_calls("same") == 0


async def test_call_is_remembered_by_its_implicit_turn_before_it_runs(tmp_path: Path) -> None:
    async with desk(tmp_path, trust=trust("writes")) as found:
        store, turns = found.gateway.store, ImplicitTurns(found.gateway.store, are_shared=True)
        implicit = found.turn.implicit = await turns.of(ANA, "desk", "r1" * 32, 10**9)
        refused = await found.refused(
            StoreUnavailable,
            controls=replace(found.controls, turns=SharedTurnState(Unwritable())),  # type: ignore[arg-type]  # likewise
        )
        await found.call()
        kept = load_turn_state(await store.read_turn_state(implicit.id))
        await found.call(found.new_call("c2"))
        alone = await found.call(found.new_call("c3"), controls=GuardDependencies())

        assert (refused.reason, alone.decision) == ("check-failed", "allow")
        assert "writes" in kept.flags
        assert implicit.state.calls == 3
        assert not implicit.is_behind


async def test_caller_is_counted_over_turns_and_bytes_are_charged_later(tmp_path: Path) -> None:
    checks = (LoopCheck(2, within=HOUR), BudgetCheck(None, 3, "hold", within=HOUR))
    async with desk(tmp_path, *checks) as found:
        call = await found.call(found.new_call("c1"))
        assert call.charge is not None
        await call.charge(3)
        with pytest.raises(RuleHeld, match="3 bytes within 1h"):
            await found.call(held := found.new_call("c2", checksum="other"))
    async with desk(tmp_path / "other", LoopCheck(2, within=HOUR)) as found:
        for id in ("c1", "c2"):
            await found.call(found.new_call(id))
        found.turn = await found.gateway.service.turns.open(ANA, "desk")
        with pytest.raises(RuleDenied, match="the same call 2 times within 1h"):
            await found.call(denied := found.new_call("c3"))
        await found.call(found.new_call("c4", checksum="other"))

    assert (held.decision, held.reason, held.rules) == ("hold", "budget-spent", ("rule-1",))
    assert (denied.decision, denied.reason) == ("deny", "loop-stopped")
    assert found.ran == ["c1", "c2", "c4"]


async def test_people_decide_about_calls_beyond_a_quota(tmp_path: Path) -> None:
    quota = QuotaCheck(1, HOUR, on_exhausted="hold", sum=("amount",), approval=ASKS_LEADS)
    async with desk(tmp_path, quota, RateCheck(2, HOUR)) as found:
        await found.call(found.new_call("c1"))
        with pytest.raises(ApprovalPending):
            await found.call(found.new_call("c2"))
        await found.vote("grant")
        await found.call(found.new_call("c3"))
        with pytest.raises(LimitExceeded):  # the rate limit refuses on its own
            await found.call(found.new_call("c4"))
    async with desk(tmp_path / "other", quota, QuotaCheck(1, HOUR)) as found:
        await found.call(found.new_call("c1"))
        with pytest.raises(LimitExceeded):  # no approver is asked about the other quota
            await found.call(found.new_call("c2"))

    assert found.ran == ["c1"]
