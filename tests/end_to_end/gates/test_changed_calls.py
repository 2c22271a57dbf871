"""An approval does not cover a changed call, nor the same call after a restart with a changed project."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways.gate_projects import (
    ANA,
    EVA,
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
from tests.support.gateways.projects import Document, Person, http_tool, start_call_counter, start_gateway

pytestmark = pytest.mark.anyio

APPROVED = rule("leads-agree", HELD)


@pytest.mark.parametrize(
    ("person", "place", "text"),
    [
        pytest.param(ANA, "desk", "y", id="argument"),
        pytest.param(EVA, "desk", "x", id="principal"),
        pytest.param(ANA, "other", "x", id="catalogue"),
    ],
)
async def test_another_call_than_the_approved_one_asks_anew(
    person: Person, place: str, text: str, tmp_path: Path
) -> None:
    async with start_gate_project(tmp_path, APPROVED) as (gateway, backend):
        id = pending_id(await pay(gateway.caller(ANA)))
        await grant(gateway.caller(LIZ), id)

        answer = await pay(gateway.caller(person), text, place=place)

        assert pending_id(answer) != id
        assert backend.paths == []


@dataclass(frozen=True)
class Change:
    """How the project differs after the restart."""

    rules: Sequence[Document] = (APPROVED,)
    policy: str = POLICY
    people: tuple[Person, ...] = PEOPLE
    tool: Callable[[int], Document] | None = None


def described_otherwise(port: int) -> Document:
    return http_tool("pay", port, flags=["writes"], description="Does something else.")


def elsewhere(port: int) -> Document:
    made = http_tool("pay", port, flags=["writes"])
    made["spec"]["backend"]["url"] += "-elsewhere"
    return made


def of_another_version(port: int) -> Document:
    made = http_tool("pay", port, flags=["writes"])
    made["spec"]["version"] = "1.0.1"
    return made


WITHOUT_THE_ROLE = tuple(Person("liz", ("agent",)) if each is LIZ else each for each in PEOPLE)


async def grant_then_restart(change: Change, tmp_path: Path) -> tuple[str, Any, list[str]]:
    """Return the id of the granted approval, the answer to the same call after a restart, and what ran."""
    async with start_call_counter() as backend:
        project = write(tmp_path / "p", approval_client(backend.port, rules=[APPROVED]))
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            id = pending_id(await pay(gateway.caller(ANA)))
            assert (await grant(gateway.caller(LIZ), id)).json["state"] == "granted"
        documents = approval_client(backend.port, rules=change.rules, people=change.people)
        if change.tool is not None:
            documents = [change.tool(backend.port) if _is_pay(each) else each for each in documents]
        project = write(tmp_path / "p2", documents, policy=change.policy)
        async with start_gateway(project, tmp_path / "data", people=change.people) as gateway:
            answer = await pay(gateway.caller(ANA))
        return id, answer, backend.paths


def _is_pay(document: Document) -> bool:
    return bool(document["kind"] == "Tool" and document["metadata"]["name"] == "pay")


async def test_nothing_changed_and_the_approval_outlives_the_process(tmp_path: Path) -> None:
    _, answer, ran = await grant_then_restart(Change(), tmp_path)

    assert (answer.status, answer.json["isError"], ran) == (200, False, ["/pay"])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(Change(tool=described_otherwise), id="description"),
        pytest.param(Change(tool=elsewhere), id="backend"),
        pytest.param(Change(tool=of_another_version), id="version"),
        pytest.param(Change(policy=f"{POLICY}p, role:lead, other, tool:plain, discover, internal, allow\n"), id="row"),
        pytest.param(Change(rules=[rule("leads-agree", {**HELD, "reason": "another"})]), id="reason"),
        pytest.param(Change(rules=[rule("leads-look", HELD)]), id="rule"),
        pytest.param(Change(people=WITHOUT_THE_ROLE), id="approver-without-the-role"),
    ],
)
async def test_what_changed_with_another_start_asks_anew(change: Change, tmp_path: Path) -> None:
    id, answer, ran = await grant_then_restart(change, tmp_path)

    assert pending_id(answer) != id
    assert ran == []


async def test_what_was_asked_before_another_start_is_stale_and_what_is_asked_anew_counts(tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project = write(tmp_path / "p", approval_client(backend.port, rules=[APPROVED]))
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            old, other = [pending_id(await pay(gateway.caller(ANA), text)) for text in ("x", "y")]
        project = write(tmp_path / "p2", approval_client(backend.port, rules=[rule("leads-look", HELD)]))
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
            new = pending_id(await pay(ana))
            listed = (await liz.rest("GET", "/v1/approvals")).json["approvals"]
            useless = await grant(liz, old)
            refused = await liz.rest("POST", f"/v1/approvals/{other}/reject", {})
            useful = await grant(liz, new)
            answer = await pay(ana)
            left = (await ana.rest("GET", f"/v1/approvals/{old}")).json

    assert [(each["id"], each["stale"]) for each in listed] == [(new, False), (other, True), (old, True)]
    assert (useless.status, useless.json["code"]) == (409, "E_APPROVAL_STALE")
    assert left["revision"][:12] in useless.json["detail"]
    assert left["servedRevision"][:12] in useless.json["detail"]
    assert (left["state"], left["entries"]) == ("pending", [])
    assert (refused.json["state"], useful.json["state"]) == ("refused", "granted")
    assert (answer.status, backend.paths) == (200, ["/pay"])


async def test_caller_who_lost_the_right_does_not_run_what_was_approved(tmp_path: Path) -> None:
    policy = POLICY.replace("role:agent, *, tool:*, discover|invoke|read", "role:agent, *, tool:plain, invoke|read")

    _, answer, ran = await grant_then_restart(Change(policy=policy), tmp_path)

    assert (answer.status, ran) == (404, [])


async def test_expired_approval_does_not_run(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, rule("leads-agree", {**HELD, "timeout": "1s"})) as (gateway, backend):
        ana = gateway.caller(ANA)
        id = pending_id(await pay(ana))
        await grant(gateway.caller(LIZ), id)
        state = "granted"
        while state == "granted":
            state = (await ana.rest("GET", f"/v1/approvals/{id}")).json["state"]

        answer = await pay(ana)
        late = await grant(gateway.caller(LEO), id)

        assert state == "expired"
        assert pending_id(answer) != id
        assert (late.status, late.json["code"]) == (409, "E_APPROVAL_CLOSED")
        assert backend.paths == []
