"""Approvals over REST: callers see only their own, decide only as themselves, and see everything."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from gateway.model.schema.schema import Schema
from gateway.server.rest.approvals import ANSWERS
from tests.approvals.held_calls import ADA, ApprovalFixture, action, refund
from tests.server.rest.approval_server import PEOPLE, ApprovalRestServer

pytestmark = pytest.mark.anyio

RESOLUTION = {"type": "object", "required": ["approved"], "properties": {"approved": {"const": True}}}


class Callers:
    """One client for each person."""

    def __init__(self, desk: ApprovalFixture) -> None:
        self.app = ApprovalRestServer(desk)
        transport = httpx2.ASGITransport(app=self.app)
        self.clients = {
            name: httpx2.AsyncClient(
                transport=transport, base_url="http://gateway", headers={"Authorization": f"Bearer {name}"}
            )
            for name in [*PEOPLE, "nobody"]
        }

    def __getattr__(self, name: str) -> httpx2.AsyncClient:
        return self.clients[name]


@pytest.fixture
async def callers(desk: ApprovalFixture) -> AsyncIterator[Callers]:
    callers = Callers(desk)
    yield callers
    for client in callers.clients.values():
        await client.aclose()


def is_described(name: str, body: Any) -> bool:
    """References inside components point below `#/components/schemas`."""
    components = {"components": {"schemas": {each: dict(document) for each, document in ANSWERS.items()}}}
    return Schema({"$ref": f"#/components/schemas/{name}", **components}, closed=False).is_valid(body)


async def test_approver_sees_everything_there_is_to_decide_upon(desk: ApprovalFixture, callers: Callers) -> None:
    id = await desk.pending(refund(show=("amount",), needed=2, resolution=RESOLUTION))

    answer = await callers.lea.get(f"/v1/approvals/{id}")

    body = answer.json()
    assert answer.headers["cache-control"] == "no-store"
    assert is_described("Approval", body)
    assert body["arguments"] == [{"name": "amount", "value": "700", "unseen": 0, "origin": "caller"}]
    assert (body["leftOut"], body["requester"], body["mayDecide"]) == (1, "user:ada", True)
    assert (body["rule"], body["ruleAt"]) == ("refunds-over-500", "configs/gates.yaml:4:18")
    assert body["resolutionSchema"] == RESOLUTION
    assert body["expiresAt"] == "2026-05-01T12:30:00+00:00"
    assert (body["stale"], body["excerpt"], body["mayNot"]) == (False, "amount=700", {})
    assert not {"turn", "servedRevision"} & set(body)


async def test_enough_votes_grant(desk: ApprovalFixture, callers: Callers) -> None:
    id = await desk.pending(refund(needed=2))
    shown = (await callers.lea.get(f"/v1/approvals/{id}")).json()["shownDigest"]

    first = await callers.lea.post(f"/v1/approvals/{id}/resolve", json={"note": "fi\u202ene", "shownDigest": shown})
    second = await callers.leo.post(f"/v1/approvals/{id}/resolve", json={})

    assert (first.json()["state"], second.json()["state"]) == ("pending", "granted")
    assert is_described("Approval", second.json())
    assert second.json()["entries"][0] == {
        "approver": "user:lea",
        "decision": "grant",
        "at": "2026-05-01T12:00:00+00:00",
        "shownDigest": shown,
        "note": r"fi\u202ene",
    }
    assert (await desk.again(refund(needed=2))).state == "taken"


async def test_one_rejection_refuses(desk: ApprovalFixture, callers: Callers) -> None:
    id = await desk.pending()

    answer = await callers.lea.post(f"/v1/approvals/{id}/reject", json={"note": "no"})
    late = await callers.leo.post(f"/v1/approvals/{id}/resolve", json={})

    assert answer.json()["state"] == "refused"
    assert (late.status_code, late.json()["code"]) == (409, "E_APPROVAL_CLOSED")


@pytest.mark.parametrize(
    "forged",
    [
        {"approver": "user:leo"},
        {"approver": {"subject": "user:leo"}},
        {"principal": "user:leo"},
        {"state": "granted"},
        {"entries": []},
        {"note": "x" * 2001},
        {"shownDigest": "short"},
    ],
    ids=lambda forged: next(iter(forged)),
)
async def test_nothing_in_a_body_decides_who_decides(
    desk: ApprovalFixture, callers: Callers, forged: dict[str, Any]
) -> None:
    id = await desk.pending(refund(needed=2))

    answers = [await callers.lea.post(f"/v1/approvals/{id}/{how}", json=forged) for how in ("resolve", "reject")]

    assert [each.status_code for each in answers] == [400, 400]
    assert {each.json()["code"] for each in answers} == {"E_INVALID_REQUEST"}
    assert (await desk.approvals.find(id, ADA)).entries == ()


async def test_requester_may_look_and_not_decide(desk: ApprovalFixture, callers: Callers) -> None:
    desk.directory.roles["user:ada"] = {"role:finance-lead"}
    id = await desk.pending()

    seen = await callers.ada.get(f"/v1/approvals/{id}")
    decided = await callers.ada.post(f"/v1/approvals/{id}/resolve", json={})

    message = "the requester of an approval cannot decide it; ask another approver, whatever roles you hold yourself"
    assert (seen.status_code, seen.json()["mayDecide"]) == (200, False)
    assert seen.json()["mayNot"] == {"grant": message, "refuse": message}
    assert (decided.status_code, decided.json()["code"]) == (403, "E_OWN_REQUEST")


@pytest.mark.parametrize("person", ["max", "stranger"])
async def test_unknown_and_not_mine_are_the_same_bytes(desk: ApprovalFixture, callers: Callers, person: str) -> None:
    id = await desk.pending()
    client = callers.clients[person]

    for path, body in (("", None), ("/resolve", {}), ("/reject", {})):
        answers = [
            await (client.get(url) if body is None else client.post(url, json=body))
            for url in (f"/v1/approvals/{id}{path}", f"/v1/approvals/unknown{path}")
        ]

        assert [each.status_code for each in answers] == [404, 404]
        assert answers[0].content == answers[1].content
        assert answers[0].headers == answers[1].headers


async def test_approver_who_lost_the_role_is_refused(desk: ApprovalFixture, callers: Callers) -> None:
    id = await desk.pending()
    desk.directory.roles["user:lea"] = set()

    answer = await callers.lea.post(f"/v1/approvals/{id}/resolve", json={})

    assert (answer.status_code, answer.json()["code"]) == (404, "E_UNKNOWN_APPROVAL")


async def test_wrong_resolution_is_explained_and_leaves_it_open(desk: ApprovalFixture, callers: Callers) -> None:
    id = await desk.pending(refund(resolution=RESOLUTION))

    wrong = await callers.lea.post(f"/v1/approvals/{id}/resolve", json={"resolution": {"approved": False}})
    right = await callers.lea.post(f"/v1/approvals/{id}/resolve", json={"resolution": {"approved": True}})

    assert (wrong.status_code, wrong.json()["code"]) == (422, "E_INVALID_RESOLUTION")
    assert wrong.json()["errors"][0]["at"] == "/approved"
    assert right.json()["state"] == "granted"


async def test_decision_on_something_else_is_refused(desk: ApprovalFixture, callers: Callers) -> None:
    id = await desk.pending()

    answer = await callers.lea.post(f"/v1/approvals/{id}/resolve", json={"shownDigest": "0" * 64})

    assert (answer.status_code, answer.json()["code"]) == (409, "E_SHOWN_OTHERWISE")


async def test_second_vote_is_refused(desk: ApprovalFixture, callers: Callers) -> None:
    id = await desk.pending(refund(needed=2))
    await callers.lea.post(f"/v1/approvals/{id}/resolve", json={})

    answer = await callers.lea.post(f"/v1/approvals/{id}/reject", json={})

    assert (answer.status_code, answer.json()["code"]) == (409, "E_ALREADY_DECIDED")


async def test_list_has_what_waits_page_by_page(desk: ApprovalFixture, callers: Callers) -> None:
    ids = [await desk.pending(refund(action(arguments={"n": n}))) for n in range(3)]
    await desk.approvals.decide(ids[0], PEOPLE["lea"], "refuse")

    first = (await callers.leo.get("/v1/approvals?limit=1")).json()
    second = (await callers.leo.get(f"/v1/approvals?limit=1&cursor={first['next']}")).json()
    everything = (await callers.leo.get("/v1/approvals?state=any")).json()
    own = (await callers.ada.get("/v1/approvals?role=requester&tool=payment_refund")).json()

    assert is_described("Approvals", first)
    assert [each["id"] for each in [*first["approvals"], *second["approvals"]]] == [ids[2], ids[1]]
    assert "next" not in second
    assert [each["state"] for each in everything["approvals"]] == ["pending", "pending", "refused"]
    assert len(own["approvals"]) == 2
    assert "arguments" not in first["approvals"][0]
    for client in (callers.max, callers.stranger):
        assert (await client.get("/v1/approvals?state=any")).json() == {"approvals": []}


async def test_what_was_asked_under_another_revision_is_reported_and_not_granted(
    desk: ApprovalFixture, callers: Callers
) -> None:
    id = await desk.pending()
    callers.app.publish("r2" * 32)
    newer = await desk.pending(refund(action(revision="r2" * 32)))

    listed = (await callers.lea.get("/v1/approvals")).json()
    shown = (await callers.lea.get(f"/v1/approvals/{id}")).json()
    granted = await callers.lea.post(f"/v1/approvals/{id}/resolve", json={})

    assert is_described("Approvals", listed)
    assert [(each["id"], each["stale"], each["mayDecide"]) for each in listed["approvals"]] == [
        (newer, False, True),
        (id, True, True),
    ]
    assert is_described("Approval", shown)
    assert (shown["revision"], shown["servedRevision"], list(shown["mayNot"])) == ("r1", "r2" * 32, ["grant"])
    message = granted.json()
    assert (granted.status_code, message["code"]) == (409, "E_APPROVAL_STALE")
    assert message["detail"] == (
        "the approval was requested under revision r1, but r2r2r2r2r2r2 is served here: no call can use it"
    )
    assert "has to call again" in message["help"]
    assert shown["mayNot"]["grant"] == f"{message['detail']}; {message['help']}"
    assert (await desk.approvals.find(id, ADA)).entries == ()


async def test_what_was_asked_under_another_revision_can_be_refused(desk: ApprovalFixture, callers: Callers) -> None:
    id = await desk.pending()
    callers.app.publish("r2")

    answer = await callers.lea.post(f"/v1/approvals/{id}/reject", json={})

    assert (answer.status_code, answer.json()["state"], answer.json()["stale"]) == (200, "refused", False)


async def test_approval_is_no_longer_stale_once_its_revision_is_served_again(
    desk: ApprovalFixture, callers: Callers
) -> None:
    id = await desk.pending()
    callers.app.publish("r2")
    callers.app.publish("r1")

    answer = await callers.lea.post(f"/v1/approvals/{id}/resolve", json={})

    assert (answer.status_code, answer.json()["state"], answer.json()["stale"]) == (200, "granted", False)


async def test_list_distinguishes_calls_of_one_tool(desk: ApprovalFixture, callers: Callers) -> None:
    for order in ("A-1", "A-2"):
        await desk.pending(refund(action(arguments={"order": order, "secret": 1}), show=("order",)))

    listed = (await callers.lea.get("/v1/approvals")).json()["approvals"]

    assert [each["excerpt"] for each in listed] == ['order="A-2"', 'order="A-1"']


async def test_list_shows_states_as_of_now(desk: ApprovalFixture, callers: Callers) -> None:
    await desk.pending(refund(timeout=timedelta(minutes=1)))
    desk.clock.advance(minutes=1)

    [found] = (await callers.lea.get("/v1/approvals?state=expired")).json()["approvals"]

    assert (found["state"], found["mayDecide"]) == ("expired", False)


@pytest.mark.parametrize(
    "query", ["cursor=x", "limit=0", "limit=201", "state=open", "role=admin", "unknown=1", "tool=", "cursor=1&cursor=2"]
)
async def test_wrong_query_is_refused(desk: ApprovalFixture, callers: Callers, query: str) -> None:
    answer = await callers.lea.get(f"/v1/approvals?{query}")

    assert (answer.status_code, answer.json()["code"]) == (400, "E_INVALID_REQUEST")


async def test_hostile_text_is_seen_for_what_it_is(desk: ApprovalFixture, callers: Callers) -> None:
    id = await desk.pending(refund(action(arguments={"to": "eve\u202e\x1b[1A", "n": 12345678901234567891})))

    arguments = (await callers.lea.get(f"/v1/approvals/{id}")).json()["arguments"]

    assert arguments == [
        {"name": "n", "value": "12345678901234567891", "unseen": 0, "origin": "caller"},
        {"name": "to", "value": r'"eve\u202e\u001b[1A"', "unseen": 2, "origin": "caller"},
    ]
