"""Grants in running gateways: they add a role after an approval, in every process, and end by the clock."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.app.status_report import build_status
from gateway.policy.forward_clock import forward_now
from tests.end_to_end.gates.test_workers import callers, run_command
from tests.support.audit_log import entries
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.gate_projects import ANA, LIZ
from tests.support.gateways.grant_projects import (
    GRANT_PEOPLE,
    GRANT_ROWS,
    MAX,
    MIA,
    OPS,
    TIA,
    change_grant,
    get_grant,
    grant_documents,
    request_grant,
    write_grant_project,
)
from tests.support.gateways.projects import (
    CallCounter,
    Caller,
    GatewayUnderTest,
    Reply,
    environ_of,
    start_call_counter,
    start_gateway,
    write_project,
)
from tests.support.gateways.replicas import CONNECTION, postgres_documents

pytestmark = pytest.mark.anyio


class MovedClock:
    """The clock of everything that ends, moved ahead without waiting."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    moved = MovedClock()
    monkeypatch.setattr(forward_now, "_latest", moved())  # what the test moves ahead is undone after it
    monkeypatch.setattr(forward_now, "_clock", moved)
    return moved


@asynccontextmanager
async def start_grant_gateway(tmp_path: Path, **changes: Any) -> AsyncIterator[tuple[GatewayUnderTest, CallCounter]]:
    async with start_call_counter() as backend:
        project = write_grant_project(tmp_path / "p", backend.port, **changes)
        async with start_gateway(project, tmp_path / "data", people=GRANT_PEOPLE) as gateway:
            yield gateway, backend


async def pay(caller: Caller) -> Reply:
    return await caller.rest_call("desk", "pay", {"text": "x"})


def was_paid(reply: Reply) -> bool:
    return reply.status == 200 and reply.json["isError"] is False


async def test_grant_adds_a_role_until_it_ends(tmp_path: Path, clock: MovedClock) -> None:
    async with start_grant_gateway(tmp_path) as (gateway, backend):
        mia, liz = gateway.caller(MIA), gateway.caller(LIZ)
        before = await pay(mia)
        await get_grant(mia, liz)
        during = [await pay(mia) for _ in range(3)]
        clock.ahead = timedelta(minutes=59, seconds=30)
        late = await pay(mia)
        clock.ahead = timedelta(hours=1)
        after = await pay(mia)
        clock.ahead = timedelta(0)
        set_back = await pay(mia)

    assert [was_paid(each) for each in (before, *during, late, after, set_back)] == [
        *(False, True, True, True, True, False, False)
    ]
    assert backend.paths == ["/pay"] * 4


async def test_grant_that_is_revoked_adds_nothing_from_the_next_call_on(tmp_path: Path) -> None:
    async with start_grant_gateway(tmp_path) as (gateway, _):
        mia, liz = gateway.caller(MIA), gateway.caller(LIZ)
        id = await get_grant(mia, liz)
        during = await pay(mia)
        revoked = await change_grant(mia, id, "revoke")
        after = await pay(mia)
        again = [await change_grant(who, id, verb) for who in (mia, liz) for verb in ("revoke", "approve")]
        renewed = await get_grant(mia, liz)
        last = await pay(mia)

    assert (revoked.status, revoked.json["status"], revoked.json["revokedBy"]) == (200, "revoked", "user:mia")
    assert [was_paid(each) for each in (during, after, last)] == [True, False, True]
    assert [each.status for each in again] == [409, 403, 409, 409]
    assert renewed != id


async def test_grant_shows_in_lists_status_records_and_the_log(tmp_path: Path) -> None:
    async with start_grant_gateway(tmp_path) as (gateway, _):
        mia, liz = gateway.caller(MIA), gateway.caller(LIZ)
        nothing = await mia.rest("GET", "/v1/catalogues")
        id = await get_grant(mia, liz)
        catalogues = await mia.rest("GET", "/v1/catalogues")
        tools = await mia.rest("GET", "/v1/catalogues/desk/tools")
        called = await pay(mia)
        seen = {who: (await gateway.caller(who).rest("GET", "/v1/grants")).json["grants"] for who in GRANT_PEOPLE}
        status = await build_status(gateway.running)
    log_entries = entries(tmp_path / "data" / "gateway.db")
    env = {**environ_of(GRANT_PEOPLE), "GATEWAY_DATA_DIR": str(tmp_path / "data")}
    trace = await run_command("trace", called.json["callId"], "--project", str(tmp_path / "p"), env=env)

    assert nothing.json["catalogues"] == []
    assert [each["name"] for each in catalogues.json["catalogues"]] == ["desk", "other"]
    assert {each["name"] for each in tools.json["tools"]} >= {"plain", "pay"}
    assert {who.name for who, found in seen.items() if found} == {"mia", "max", "liz", "ops"}
    assert [each["id"] for each in status["grants"]["inForce"]] == [id]
    log = [each for each in log_entries if each["event"].startswith("grant-")]
    assert [(each["event"], each["caller"]["subject"]) for each in log] == [
        ("grant-requested", "user:mia"),
        ("grant-approved", "user:liz"),
    ]
    assert log[1]["object"]["name"] == id
    assert "role:agent for user:mia by incidents: INC-42" in log[1]["object"]["note"]
    decided = [each["decision"] for each in log_entries if each["event"] in ("call-started", "call-settled")]
    assert [each["grants"] for each in decided] == [[id], [id]]
    assert f"grants {id}" in " ".join(trace.split())
    assert f"by grant {id}" in " ".join(trace.split())


# What an attacker tries


ATTACKS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "a role outside the policy": (MIA, {"role": "role:lead"}, 403),
    "a role that does not exist": (MIA, {"role": "role:agentt"}, 403),
    "a role of another case": (MIA, {"role": "role:Agent"}, 403),
    "a look-alike role": (MIA, {"role": "role:\u0430gent"}, 422),
    "a role with a space": (MIA, {"role": "role:agent "}, 422),
    "a pattern": (MIA, {"role": "role:*"}, 422),
    "no role but a subject": (MIA, {"role": "user:ana"}, 422),
    "another recipient": (MIA, {"subject": "user:ana"}, 403),
    "a look-alike recipient": (MIA, {"subject": "user:m\u0456a"}, 422),
    "a role as recipient": (MIA, {"subject": "role:member"}, 422),
    "not a member": (LIZ, {"subject": "user:liz"}, 403),
    "another tenant": (TIA, {"subject": "user:mia"}, 403),
    "too long": (MIA, {"seconds": 7201}, 403),
    "a week and a second": (MIA, {"seconds": 604_801}, 400),
    "a huge duration": (MIA, {"seconds": 10**30}, 400),
    "no time": (MIA, {"seconds": 0}, 400),
    "a negative duration": (MIA, {"seconds": -1}, 400),
    "a fraction": (MIA, {"seconds": 0.5}, 400),
    "a reason of two lines": (MIA, {"reason": "INC-42\napproved: yes"}, 422),
    "a reason that turns text around": (MIA, {"reason": "INC \u202egpj"}, 422),
    "an invisible reason": (MIA, {"reason": "\u200b"}, 422),
    "a blank reason": (MIA, {"reason": "   "}, 422),
    "a long reason": (MIA, {"reason": "x" * 1001}, 400),
    "a state": (MIA, {"state": "approved"}, 400),
    "an approver": (MIA, {"decidedBy": "user:liz"}, 400),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_request_outside_the_policy_is_refused(name: str, tmp_path: Path) -> None:
    who, changes, status = ATTACKS[name]
    async with start_grant_gateway(tmp_path) as (gateway, _):
        answer = await request_grant(gateway.caller(who), **changes)
        listed = await gateway.caller(OPS).rest("GET", "/v1/grants")

    assert answer.status == status, answer.body
    assert listed.json["grants"] == []


async def test_requester_and_recipient_never_decide(tmp_path: Path) -> None:
    async with start_grant_gateway(tmp_path) as (gateway, backend):
        max_, liz, ops = gateway.caller(MAX), gateway.caller(LIZ), gateway.caller(OPS)
        own = (await request_grant(max_, "user:max")).json["id"]
        for_max = (await request_grant(ops, "user:max", role="role:agent", reason="INC-43")).json
        answers = [await change_grant(max_, own, verb) for verb in ("approve", "refuse")]
        strangers = [await change_grant(gateway.caller(who), own, "approve") for who in (MIA, TIA, ANA)]
        operator = await change_grant(ops, own, "approve")
        called = await pay(max_)
        approved = [await change_grant(liz, own, "approve") for _ in range(3)]

    assert for_max["code"] == "E_GRANT_REFUSED"
    assert [(each.status, each.json["code"]) for each in answers] == [(403, "E_GRANT_REFUSED")] * 2
    assert [each.status for each in strangers] == [404, 404, 404]
    assert operator.status == 404
    assert not was_paid(called)
    assert [each.status for each in approved] == [200, 409, 409]
    assert backend.paths == []


async def test_granted_role_approves_nothing(tmp_path: Path) -> None:
    """A member who gets the role of approvers cannot approve grants, or calls, with it."""
    changes = {"roles": ["role:agent", "role:lead"]}
    async with start_grant_gateway(tmp_path, **changes) as (gateway, _):
        mia, liz, max_ = gateway.caller(MIA), gateway.caller(LIZ), gateway.caller(MAX)
        await get_grant(mia, liz, role="role:lead")
        of_max = (await request_grant(max_, "user:max")).json["id"]
        approved = await change_grant(mia, of_max, "approve")
        listed = (await mia.rest("GET", "/v1/grants")).json["grants"]
        approvals = await mia.rest("GET", "/v1/approvals")

    assert approved.status == 404
    assert of_max not in [each["id"] for each in listed]
    assert approvals.json["approvals"] == []


async def test_renewals_do_not_add_up_beyond_the_total(tmp_path: Path, clock: MovedClock) -> None:
    async with start_grant_gateway(tmp_path) as (gateway, _):
        mia, liz = gateway.caller(MIA), gateway.caller(LIZ)
        answers = []
        for hours in (0, 2, 4, 6):
            clock.ahead = timedelta(hours=hours)
            requested = await request_grant(mia, seconds=7200)
            second = await request_grant(mia, seconds=7200)
            answers.append((await change_grant(liz, requested.json["id"], "approve")).status)
            held = was_paid(await pay(mia))
            assert second.status == 403  # one request at a time
            assert held is (answers[-1] == 200)
            await change_grant(mia, requested.json["id"], "revoke") if answers[-1] != 200 else None

    assert answers == [200, 200, 403, 403]


async def test_policy_that_shrinks_shrinks_running_grants(tmp_path: Path, clock: MovedClock) -> None:
    """The policy that is served decides, not the one that a grant was approved under."""
    async with start_call_counter() as backend:
        project = write_grant_project(tmp_path / "p", backend.port)
        async with start_gateway(project, tmp_path / "data", people=GRANT_PEOPLE) as gateway:
            await get_grant(gateway.caller(MIA), gateway.caller(LIZ), seconds=7200)
        paid = {}
        clock.ahead = timedelta(minutes=30)
        smaller: dict[str, dict[str, Any]] = {
            "same": {},
            "shorter": {"maxDuration": "10m", "maxTotal": "10m"},
            "less in total": {"maxDuration": "29m", "maxTotal": "29m"},
            "others": {"to": ["user:ana"]},
            "another role": {"roles": ["role:lead"]},
            "another approver": {"approvers": ["user:max"]},
        }
        for name, changes in smaller.items():
            write_grant_project(project, backend.port, **changes)
            async with start_gateway(project, tmp_path / "data", people=GRANT_PEOPLE) as gateway:
                paid[name] = was_paid(await pay(gateway.caller(MIA)))
        documents = [each for each in grant_documents(backend.port) if each["kind"] != "GrantPolicy"]
        write_project(project, documents, policy=GRANT_ROWS)
        async with start_gateway(project, tmp_path / "data", people=GRANT_PEOPLE) as gateway:
            paid["none"] = was_paid(await pay(gateway.caller(MIA)))

    assert paid == {name: name == "same" for name in (*smaller, "none")}


# Several processes


def fork_gateway(forks: ForkServer, project: Path, data: Path) -> GatewayFork:
    settings = {**environ_of(GRANT_PEOPLE), "GATEWAY_DATA_DIR": str(data)}
    return forks.start(project, data, env=settings, options=("--workers", "2"))


@pytest.fixture
def started(forks: ForkServer) -> Iterator[Callable[..., GatewayFork]]:
    gateways: list[GatewayFork] = []

    def start(project: Path, data: Path) -> GatewayFork:
        gateways.append(fork_gateway(forks, project, data))
        return gateways[-1]

    yield start
    for each in gateways:
        each.kill()


async def test_every_worker_sees_a_grant_its_end_and_its_revocation(
    started: Callable[..., GatewayFork], tmp_path: Path
) -> None:
    async with start_call_counter() as backend:
        project, data = write_grant_project(tmp_path / "p", backend.port), tmp_path / "data"
        database = ("--database", str(data / "gateway.db"))
        gateway = started(project, data)
        async with callers(gateway, MIA, LIZ) as [mia, liz]:
            before = [was_paid(await pay(mia)) for _ in range(6)]
            id = await get_grant(mia, liz)
            during = [was_paid(await pay(mia)) for _ in range(6)]
            listed = await run_command("grant", "list", *database, env={})
            revoked = await run_command("grant", "revoke", id, "--reason", "over", *database, env={})
            after = [was_paid(await pay(mia)) for _ in range(6)]
            await get_grant(mia, liz)
        gateway.kill()  # right after the approval was answered
        gateway = started(project, data)
        async with callers(gateway, MIA) as [mia]:
            again = [was_paid(await pay(mia)) for _ in range(6)]

    assert (before, during, after, again) == ([False] * 6, [True] * 6, [False] * 6, [True] * 6)
    assert id in listed
    assert f"{id}  role:agent for user:mia: revoked" in revoked


async def test_replicas_on_postgres_see_a_grant_its_end_and_its_revocation(
    tmp_path: Path, new_database: Callable[[], str], clock: MovedClock
) -> None:
    async with start_call_counter() as backend:
        documents = postgres_documents(grant_documents(backend.port))
        project = write_project(tmp_path / "p", documents, policy=GRANT_ROWS)
        settings: dict[str, Any] = {"people": GRANT_PEOPLE, "environ": {CONNECTION: new_database()}}
        async with (
            start_gateway(project, tmp_path / "data", **settings) as one,
            start_gateway(project, tmp_path / "data", **settings) as other,
        ):
            found = []

            async def ask() -> None:
                found.append([was_paid(await pay(each.caller(MIA))) for each in (one, other)])

            await ask()
            id = await get_grant(one.caller(MIA), other.caller(LIZ))
            await ask()
            await change_grant(one.caller(LIZ), id, "revoke")
            await ask()
            await get_grant(other.caller(MIA), one.caller(LIZ))
            await ask()
            clock.ahead = timedelta(hours=1)
            await ask()

    assert found == [[False] * 2, [True] * 2, [False] * 2, [True] * 2, [False] * 2]


async def test_command_line_requests_and_decides(started: Callable[..., GatewayFork], tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project, data = write_grant_project(tmp_path / "p", backend.port), tmp_path / "data"
        gateway = started(project, data)
        of_mia, of_liz = ({"GATEWAY_TOKEN": each.token} for each in (MIA, LIZ))
        to = ("--url", gateway.url, "--format", "json")
        asked = ("grant", "user:mia", "role:agent", "--for", "30m", "--reason", "INC-42")
        first = json.loads(await run_command(*asked, *to, env=of_mia))
        refused = json.loads(await run_command("grant", "refuse", first["id"], *to, env=of_liz))
        second = json.loads(await run_command(*asked, *to, env=of_mia))
        text = await run_command("grant", "approve", second["id"], "--url", gateway.url, env=of_liz)
        status = await run_command("grant", "list", "--all", "--database", str(data / "gateway.db"), env={})

    assert (first["status"], first["seconds"], refused["status"]) == ("pending", 1800, "refused")
    assert f"{second['id']}  role:agent for user:mia: in-force until " in text
    assert [first["id"] in status, second["id"] in status] == [True, True]
