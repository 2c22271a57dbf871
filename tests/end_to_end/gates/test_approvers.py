"""Only approvers named by the rule and allowed by the policy may decide; only their own token identifies them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways.gate_projects import (
    ANA,
    HELD,
    LEO,
    LIZ,
    PEOPLE,
    POLICY,
    approval_client,
    grant,
    pay,
    pending_id,
    rule,
    start_gate_project,
    write,
)
from tests.support.gateways.projects import CallCounter, GatewayUnderTest, start_call_counter, start_gateway

pytestmark = pytest.mark.anyio

APPROVED = rule("leads-agree", HELD)
ROW = "p, role:lead, *, tool:*, approve, community, allow\n"


@asynccontextmanager
async def with_policy(tmp_path: Path, policy: str) -> AsyncIterator[tuple[GatewayUnderTest, CallCounter]]:
    async with start_call_counter() as backend:
        project = write(tmp_path / "p", approval_client(backend.port, rules=[APPROVED]), policy=policy)
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            yield gateway, backend


POLICIES: Mapping[str, tuple[str, int]] = {
    "nothing allows it": (POLICY.replace(ROW, ""), 403),
    "the tool of another catalogue": (POLICY.replace(ROW, ROW.replace("*, tool:*", "other, tool:*")), 403),
    "another tool": (POLICY.replace(ROW, ROW.replace("tool:*", "tool:plain")), 403),
    "a row denies it": (f"{POLICY}p, user:liz, desk, tool:pay, approve, community, deny\n", 403),
    "the class of what it yields": (POLICY.replace(ROW, ROW.replace("tool:*", "class:*")), 403),
    "the tool": (POLICY.replace(ROW, ROW.replace("tool:*", "tool:pay")), 200),
}


@pytest.mark.parametrize(("policy", "status"), POLICIES.values(), ids=POLICIES)
async def test_deciding_needs_the_rule_and_the_policy(policy: str, status: int, tmp_path: Path) -> None:
    async with with_policy(tmp_path, policy) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        id = pending_id(await pay(ana))
        shown = await liz.rest("GET", f"/v1/approvals/{id}")
        decided = await grant(liz, id)
        again = await pay(ana)

    assert (shown.status, shown.json["mayDecide"]) == (200, status == 200)
    assert decided.status == status
    assert (again.status, backend.paths) == ((200, ["/pay"]) if status == 200 else (202, []))


FORGED: Mapping[str, dict[str, Any]] = {
    "approver": {"approver": "user:liz"},
    "principal": {"principal": {"subject": "user:liz", "roles": ["role:lead"]}},
    "entries": {"entries": [{"approver": "user:liz", "decision": "grant"}]},
    "by": {"by": "user:liz"},
}


@pytest.mark.parametrize("body", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("verb", ["resolve", "reject"])
async def test_approver_is_the_owner_of_the_token_whatever_the_body_claims(
    verb: str, body: Any, tmp_path: Path
) -> None:
    async with start_gate_project(tmp_path, APPROVED) as (gateway, backend):
        ana = gateway.caller(ANA)
        id = pending_id(await pay(ana))
        forged = await ana.rest("POST", f"/v1/approvals/{id}/{verb}", body)
        by_a_lead = await gateway.caller(LEO).rest("POST", f"/v1/approvals/{id}/{verb}", body)
        headers = {"x_approver": "user:liz", "x_forwarded_user": "user:liz"}
        by_header = await ana.rest("POST", f"/v1/approvals/{id}/resolve", {}, **headers)
        record = (await gateway.caller(LIZ).rest("GET", f"/v1/approvals/{id}")).json

    assert (forged.status, by_a_lead.status) == (400, 400)  # unknown fields are refused, not ignored
    assert by_header.status == 403  # callers never approve their own calls
    assert (record["state"], record["entries"], backend.paths) == ("pending", [], [])
