"""What a caller may call, as the access report says it: rules that it does not know count as the worst."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from gateway.policy.access import Access
from gateway.policy.rules.conditions import ConditionScope
from gateway.policy.rules.gate_checks import GateCheck, Judgement, PermissionLookup, RateCheck
from gateway.policy.rules.gate_rules import GateRule
from gateway.registries.tool_selection import Selector
from gateway.review.access_report import Likelihood, list_tool_access_for
from tests.engine.service_gateway import ANA, HERE, Grants, Plan

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


@dataclass(frozen=True)
class UnknownCheck(GateCheck):
    """A check that the report has no case for."""

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        return Judgement("deny", "never")


@pytest.mark.parametrize(
    ("check", "may_call"),
    [
        pytest.param(UnknownCheck(), "perhaps", id="unknown"),
        pytest.param(RateCheck(1, NOON - NOON), "yes", id="rate"),
    ],
)
def test_unknown_check_may_refuse_a_call(check: GateCheck, may_call: Likelihood) -> None:
    rule = GateRule("rule", Selector(tools=("pay",)), check, HERE)
    access = Access(Plan(gates={"rule": rule}).tool("pay", "paid").snapshot(), Grants())

    [found] = list_tool_access_for(access, ANA, access.snapshot.catalogues["desk"], at=NOON)

    assert found.may_call == may_call
