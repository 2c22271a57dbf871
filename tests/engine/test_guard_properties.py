"""Complete decisions (policy, rules, turn state, limits and approvals) against their meaning in plain Python."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.engine.call import Call
from gateway.errors import GatewayError
from gateway.policy.rules.gate_checks import BudgetCheck, GateCheck, LoopCheck, QuotaCheck
from tests.engine.service_gateway import ANA
from tests.engine.test_guard import ASKS_LEADS, LEA, Desk, desk

AMOUNTS = (1, 2)


@dataclass(frozen=True)
class Gates:
    """The active rules, in the order of their names."""

    same: int | None
    calls: int | None
    quota: int | None
    asks: bool

    @property
    def checks(self) -> list[GateCheck]:
        found: list[GateCheck] = []
        found += [] if self.same is None else [LoopCheck(self.same)]
        found += [] if self.calls is None else [BudgetCheck(self.calls)]
        found += [] if self.quota is None else [QuotaCheck(self.quota, timedelta(days=1))]
        return found + ([ASKS_LEADS] if self.asks else [])


@dataclass
class Reference:
    """The expected outcome of each call; nothing here is durable, shared or clever."""

    gates: Gates
    is_permitted: bool = True
    made: Counter[int] = field(default_factory=Counter)
    asked: dict[int, str] = field(default_factory=dict)

    def call(self, amount: int) -> tuple[str, str]:
        gates, total = self.gates, self.made.total()
        if not self.is_permitted:
            return "deny", "not-permitted"
        if gates.same is not None and self.made[amount] >= gates.same:
            return "deny", "loop-stopped"
        if gates.calls is not None and total >= gates.calls:
            return "deny", "budget-spent"
        if gates.quota is not None and total >= gates.quota:
            return "deny", "quota-exceeded"
        if gates.asks:
            state = self.asked.setdefault(amount, "pending")
            if state == "pending":
                return "hold", "approval-pending"
            if state == "refuse":
                return "deny", "approval-refused"
            del self.asked[amount]  # used once
        self.made[amount] += 1
        if gates.asks:
            return "allow", "approval-approved"
        return "allow", "rule-allowed" if gates.checks else "permitted"

    def vote(self, amount: int, vote: str) -> bool:
        """Whether there is an approval to vote on."""
        if self.asked.get(amount) != "pending":
            return False
        self.asked[amount] = vote
        return True


bounds = st.one_of(st.none(), st.integers(1, 3))
gates = st.builds(Gates, bounds, bounds, bounds, st.booleans())
amounts = st.sampled_from(AMOUNTS)
steps = st.one_of(
    st.tuples(st.just("call"), amounts),
    st.tuples(st.just("call"), amounts),
    st.tuples(st.sampled_from(["grant", "refuse"]), amounts),
    st.tuples(st.sampled_from(["permit", "forbid"]), st.just(0)),
)


@settings(max_examples=25, deadline=None)
@given(gates, st.lists(steps, min_size=4, max_size=14))
def test_decisions_are_those_of_the_reference(declared: Gates, taken: list[tuple[str, int]]) -> None:
    anyio.run(_compared, declared, taken)


async def _compared(declared: Gates, taken: list[tuple[str, int]]) -> None:
    reference = Reference(declared)
    with TemporaryDirectory() as folder:
        async with desk(Path(folder), *declared.checks) as found:
            for number, (step, amount) in enumerate(taken):
                if step == "call":
                    assert await _called(found, f"c{number}", amount) == reference.call(amount), (number, step, amount)
                elif step in ("permit", "forbid"):
                    reference.is_permitted = step == "permit"
                    found.gateway.grants.rows[("pay", "invoke")] = reference.is_permitted
                elif reference.vote(amount, step):
                    await _vote(found, amount, step)
            assert len(found.ran) == reference.made.total()


async def _called(found: Desk, id: str, amount: int) -> tuple[str | None, str]:
    args = {"amount": amount}
    call = Call(id, "pay", args, ANA, "desk", "r1" * 32, turn=found.turn, checksum=f"amount-{amount}")
    ran = len(found.ran)
    try:
        await found.call(call)
    except GatewayError:
        assert len(found.ran) == ran, "a call that was refused has run"
    return call.decision, call.reason


async def _vote(found: Desk, amount: int, vote: Any) -> None:
    records, _ = await found.approvals.page(LEA, state="pending")
    [about] = [each for each in records if each.request.action.arguments == f'{{"amount":{amount}}}']
    await found.approvals.decide(about.id, LEA, vote)
