"""Entries of the decision log: every call once, with its decision and its outcome, and never its contents."""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import count
from pathlib import Path
from time import time_ns
from typing import Any

import pytest

from gateway.approvals.approval_store import ApprovalRecord, ApprovalRequest, ApprovalSubject, ApprovalVote
from gateway.audit.content_hash import ContentKey
from gateway.audit.entries import AuditOrigin, encode_entry
from gateway.audit.verification import verify
from gateway.engine.call import Call, OutcomeNotRecorded
from gateway.engine.records.auditor import Auditor, stop_entry
from gateway.errors import GatewayError, StoreUnavailable, UnknownCall, UnknownCatalogue, UnknownTool
from gateway.model.caller import Principal
from gateway.model.primitives.canonical_json import canonical
from gateway.model.primitives.deadline import now_microseconds, to_microseconds
from gateway.policy.rules.gate_checks import GateCheck, Judgement
from gateway.policy.rules.gate_rules import GateRule
from gateway.policy.stop_list import Stop, StopChange, StopTarget
from gateway.registries.tool_selection import Selector
from gateway.storage.call_store import AuditBody, StoredCall, StoredResult
from gateway.storage.sql.audit_log import AuditLog
from gateway.storage.sql.read_only.read_only_store import SqliteAuditReader
from tests.engine.service_gateway import ANA, EVE, HERE, Gateway, Plan, running, trust

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MICROSECONDS = int(NOON.timestamp()) * 1_000_000
SECRET = bytes(range(32))
KEY = ContentKey(SECRET)
PLACE = AuditOrigin("gw", "c" * 64, "p" * 64, KEY.id)
CANARY = "canary-4711"
PIECES = (None, b"1", b"2")


@dataclass(frozen=True)
class FixedCheck(GateCheck):
    decision: Any

    def judge(self, scope: Any, may: Any) -> Judgement:
        return Judgement(self.decision, f"it says {self.decision}")


def auditor() -> Auditor:
    return Auditor(lambda: PLACE, KEY, clock=lambda: MICROSECONDS)


def written(entry: AuditBody) -> dict[str, Any]:
    """The stored entries."""
    found: dict[str, Any] = json.loads(encode_entry(*entry, KEY))
    return found


@dataclass
class Audited:
    gateway: Gateway
    database: Path

    @property
    def entries(self) -> list[dict[str, Any]]:
        """Stored bodies without the opening; asserts that the log verifies."""
        with SqliteAuditReader(self.database) as rows:
            assert verify(rows).is_good
            return [json.loads(row.body) for row in rows if row.seq > 1]

    @property
    def events(self) -> list[tuple[str, str, str]]:
        return [(each["event"], each["decision"]["effect"], each["decision"]["reason"]) for each in self.entries]

    async def call(self, tool: str = "pay", args: Any = None, *, principal: Principal = ANA, **more: Any) -> Any:
        return await self.gateway.service.call_tool(principal, "desk", tool, args, **more)


@asynccontextmanager
async def audited(folder: Path, plan: Plan) -> AsyncIterator[Audited]:
    async with running(folder, plan, auditor=auditor()) as gateway:
        numbers = count(1)
        log = AuditLog(lambda: f"shard-{next(numbers)}", PLACE, clock=lambda: MICROSECONDS, key=KEY)
        gateway.store.use_audit_log(log, abandoned=auditor().abandoned_call_entry)
        yield Audited(gateway, folder / "records.db")


def gate(decision: str) -> dict[str, GateRule]:
    return {"rule": GateRule("rule", Selector(tools=("pay",)), FixedCheck(decision), HERE)}


async def fails(call: Any) -> Any:
    raise GatewayError(CANARY, code="E_CANARY")


# --- calls ---


async def test_call_that_ran_is_settled_with_its_keyed_hashes(tmp_path: Path) -> None:
    args = {"note": CANARY, "amount": 3}
    async with audited(tmp_path, Plan().tool("pay", f"paid {CANARY}")) as found:
        settled = await found.call(args=args)
        [entry] = found.entries

    checksum = sha256(canonical({"tool": "pay", "args": args}).encode()).hexdigest()
    assert entry["at"] == MICROSECONDS
    assert entry["caller"] == {"subject": "user:ana", "tenant": "acme", "roles": ["role:staff"]}
    assert entry["target"] == {"tool": "pay", "catalogue": "desk", "identity": "pay", "tier": "open", "definition": ""}
    assert entry["call"]["id"] == settled.record.id
    assert entry["call"]["turn"] == settled.turn.id
    assert entry["call"]["schemaValid"] is True
    assert entry["call"]["arguments"] == hmac.digest(SECRET, f"arguments\n{checksum}".encode(), "sha256").hex()
    assert entry["outcome"]["state"] == "ok"
    assert entry["outcome"]["bytes"] == len(f"paid {CANARY}")
    assert entry["outcome"]["result"] == hmac.digest(SECRET, f"result\npaid {CANARY}".encode(), "sha256").hex()
    assert (entry["event"], entry["decision"]) == ("call-settled", {"effect": "allow", "reason": "permitted"})
    assert CANARY not in json.dumps(entry)


async def test_consequential_call_is_in_the_log_before_it_runs(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def run(call: Any) -> str:
        seen.extend(started[0].events)
        return "paid"

    started: list[Audited] = []
    async with audited(tmp_path, Plan().tool("pay", run, trust=trust("writes"))) as found:
        started.append(found)
        await found.call(args={"note": CANARY})
        entries = found.entries

    assert seen == [("call-started", "allow", "permitted")]
    assert [each["event"] for each in entries] == ["call-started", "call-settled"]
    assert entries[0]["call"] == entries[1]["call"]
    assert "outcome" not in entries[0]


async def test_consequential_call_with_an_idempotency_key_is_in_the_log_before_it_runs(tmp_path: Path) -> None:
    async with audited(tmp_path, Plan().tool("pay", "paid", trust=trust("writes"))) as found:
        await found.call(key="once")
        entries = found.entries

    assert [each["event"] for each in entries] == ["call-started", "call-settled"]
    assert {each["call"]["idempotencyKey"] for each in entries} == {"once"}


async def test_replayed_call_names_the_first(tmp_path: Path) -> None:
    async with audited(tmp_path, Plan().tool("pay", "paid").tool("fail", fails)) as found:
        first = [await found.call(tool, key=tool) for tool in ("pay", "fail")]
        again = [await found.call(tool, key=tool) for tool in ("pay", "fail")]
        entries = [each for each in found.entries if each["event"] == "call-replayed"]

    assert [each.is_replay for each in again] == [True, True]
    assert [each["call"]["id"] for each in entries] == [each.record.id for each in first]
    assert [each["call"]["turn"] for each in entries] == [each.turn.id for each in first]
    assert [each["call"]["idempotencyKey"] for each in entries] == ["pay", "fail"]
    assert [each["outcome"] for each in entries] == [{"state": "ok"}, {"state": "error"}]
    assert {each["caller"]["subject"] for each in entries} == {"user:ana"}


async def test_call_that_must_not_be_replayed_is_on_record(tmp_path: Path) -> None:
    async with audited(tmp_path, Plan().tool("pay", "paid")) as found:
        await found.call(key="once")
        found.gateway.grants.rows.update({("pay", "invoke"): False, ("pay", "read"): False})
        with pytest.raises(UnknownCall):
            await found.call(key="once")
        events = found.events

    assert events[-1] == ("call-decided", "deny", "not-permitted")


DECIDED: dict[str, tuple[Plan, dict[Any, bool], tuple[str, str, str]]] = {
    "not permitted": (
        Plan().tool("pay", "paid"),
        {("pay", "discover"): True, ("pay", "invoke"): False},
        ("call-decided", "deny", "not-permitted"),
    ),
    "denied by a rule": (Plan(gates=gate("deny")).tool("pay", "paid"), {}, ("call-decided", "deny", "rule-denied")),
    "held by a rule": (Plan(gates=gate("hold")).tool("pay", "paid"), {}, ("call-decided", "hold", "rule-held")),
}


@pytest.mark.parametrize(("plan", "rows", "expected"), DECIDED.values(), ids=DECIDED)
async def test_call_that_was_refused_is_decided(
    plan: Plan, rows: dict[Any, bool], expected: tuple[str, str, str], tmp_path: Path
) -> None:
    async with audited(tmp_path, plan) as found:
        found.gateway.grants.rows = rows
        settled = await found.call()
        [entry] = found.entries

    assert settled.record.is_error
    assert (entry["event"], entry["decision"]["effect"], entry["decision"]["reason"]) == expected
    assert entry["outcome"]["state"] == "refused"
    assert entry["outcome"]["errorType"].startswith("E_")
    if "rule" in expected[2]:
        assert (entry["decision"]["rules"], entry["decision"]["position"]) == (["rule"], str(HERE))


async def test_failure_is_settled_with_its_code_and_without_its_words(tmp_path: Path) -> None:
    async with audited(tmp_path, Plan().tool("pay", fails)) as found:
        await found.call()
        [entry] = found.entries

    assert (entry["event"], entry["outcome"]["state"], entry["outcome"]["errorType"]) == (
        *("call-settled", "error", "E_CANARY"),
    )
    assert CANARY not in json.dumps(entry)


async def test_invalid_arguments_are_recorded_as_a_decision(tmp_path: Path) -> None:
    async with audited(tmp_path, Plan().tool("pay", "paid")) as found:
        turn = await found.gateway.service.turns.open(ANA, "desk")
        settled = await found.gateway.service.call_in_turn(turn, "pay", "{no json")
        [entry] = found.entries

    assert settled.record.is_error
    assert (entry["event"], entry["decision"]["reason"]) == ("call-decided", "arguments-invalid")
    assert (entry["call"]["schemaValid"], entry["outcome"]["state"]) == (False, "refused")


@pytest.mark.parametrize("tool", ["nothing-like-it", "pay", "x" * 5000], ids=["unknown", "hidden", "huge"])
async def test_tool_that_is_not_there_for_the_caller_leaves_a_denial(tool: str, tmp_path: Path) -> None:
    async with audited(tmp_path, Plan().tool("pay", "paid")) as found:
        found.gateway.grants.rows = {("pay", "discover"): False}
        with pytest.raises(UnknownTool):
            await found.call(tool, {"note": CANARY})
        [entry] = found.entries

    assert (entry["event"], entry["decision"]) == ("call-decided", {"effect": "deny", "reason": "unknown-tool"})
    assert (entry["outcome"], entry["target"]["catalogue"]) == ({"state": "refused"}, "desk")
    assert entry["target"]["tool"] == tool[:512]
    assert "identity" not in entry["target"]
    assert CANARY not in json.dumps(entry)


@pytest.mark.parametrize("catalogue", ["desk", "nothing-like-it"])
async def test_catalogue_that_is_not_there_for_the_caller_leaves_a_denial(catalogue: str, tmp_path: Path) -> None:
    async with audited(tmp_path, Plan().tool("pay", "paid")) as found:
        with pytest.raises(UnknownCatalogue):
            await found.gateway.service.call_tool(EVE, catalogue, "pay", {})
        [entry] = found.entries

    assert entry["decision"] == {"effect": "deny", "reason": "not-in-audience"}
    assert (entry["caller"]["subject"], entry["target"]["catalogue"]) == ("user:eve", catalogue)


async def test_query_of_an_artifact_is_settled_as_the_callers_own(tmp_path: Path) -> None:
    async with audited(tmp_path, Plan().tool("pay", "one\ntwo\n")) as found:
        settled = await found.call()
        handle = settled.turn.id
        good = await found.call("artifact_head", {"callId": settled.record.id, "n": 1}, handle=handle)
        bad = await found.call("artifact_head", {"callId": "nothing"}, handle=handle)
        entries = found.entries[1:]

    assert not good.record.is_error, good.record.results
    assert bad.record.is_error
    assert [(each["event"], each["decision"]["effect"], each["outcome"]["state"]) for each in entries] == [
        ("call-settled", "allow", "ok"),
        ("call-decided", "deny", "refused"),
    ]
    assert entries[1]["decision"]["reason"] == "arguments-invalid"
    assert entries[1]["call"]["schemaValid"] is False


async def test_stage_that_lets_nothing_through_is_a_denial(tmp_path: Path) -> None:
    async def refuses(ctx: Any, next: Any) -> None:
        raise GatewayError("not today", code="E_NOT_TODAY")

    plan = Plan(stages={"dispatch_input": (refuses,)}).tool("pay", "paid")
    async with audited(tmp_path, plan) as found:
        settled = await found.call()

        assert settled.record.is_error
        assert found.events == [("call-decided", "deny", "check-failed")]


# --- calls that are cut off ---


async def cut_off(found: Audited, *, reached: asyncio.Event, **more: Any) -> None:
    running = asyncio.create_task(found.call(**more))
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("key", [None, "once"], ids=["without a key", "with a key"])
async def test_call_that_is_cancelled_after_its_start_is_unknown(key: str | None, tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def never(call: Any) -> str:
        reached.set()
        await asyncio.Event().wait()
        return "never"

    async with audited(tmp_path, Plan().tool("pay", never, trust=trust("writes"))) as found:
        await cut_off(found, reached=reached, key=key)
        entries = found.entries

    assert [each["event"] for each in entries] == ["call-started", "call-unknown"]
    assert entries[1]["outcome"] == {"state": "unknown"}
    assert entries[1]["decision"] == entries[0]["decision"]


async def test_call_that_is_cancelled_and_has_no_start_is_cancelled(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def never(call: Any) -> str:
        reached.set()
        await asyncio.Event().wait()
        return "never"

    async with audited(tmp_path, Plan().tool("pay", never)) as found:
        await cut_off(found, reached=reached)
        [entry] = found.entries

    assert (entry["event"], entry["outcome"]["state"]) == ("call-settled", "cancelled")


def test_call_cut_off_before_its_decision_records_no_decision() -> None:
    unknown = auditor().unknown_outcome_entry(Call("c", "pay", {}, ANA, "desk", "r", checksum="s"))
    entry = written(unknown)

    assert unknown[0] == entry["at"] == MICROSECONDS
    assert entry["event"] == "call-unknown"
    assert "decision" not in entry


def test_call_of_a_process_that_is_gone_is_named_by_its_record() -> None:
    stored = StoredCall(
        "c", "t", "pay", "shop/pay", {"note": CANARY}, "5e" * 32, ANA, "desk", "r1", to_microseconds(NOON)
    )
    entry = written(auditor().abandoned_call_entry(replace(stored, idempotency_key="once", definition="d" * 64)))

    assert entry["at"] == MICROSECONDS
    assert (entry["event"], entry["outcome"]) == ("call-unknown", {"state": "unknown"})
    assert (entry["call"]["id"], entry["call"]["turn"], entry["call"]["idempotencyKey"]) == ("c", "t", "once")
    assert entry["target"] == {
        "tool": "pay",
        "catalogue": "desk",
        "identity": "shop/pay",
        "definition": "d" * 64,
    }
    assert CANARY not in json.dumps(entry)


def test_arguments_that_cannot_be_hashed_leave_an_entry_without_their_hash() -> None:
    unknown = auditor().refusal_entry(Call("c", "pay", {}, ANA, "desk", "r"), "unknown-tool")

    assert written(unknown)["call"] == {"id": "c"}


def test_call_is_known_to_be_logged_and_its_entry_has_keyed_hashes() -> None:
    pieces = [StoredResult("artifact", key=f"k{n}", byte_length=1, content=content) for n, content in enumerate(PIECES)]
    stored = StoredCall("c", "t", "pay", "pay", {}, "5e" * 32, ANA, "desk", "r", to_microseconds(NOON), results=pieces)
    call = Call("c", "pay", {}, ANA, "desk", "r", checksum="5e" * 32)
    unknown = auditor().outcome_entry(call, stored, None)

    entry = written(unknown)
    hashes = (entry["call"]["arguments"], entry["outcome"]["result"])
    assert hashes == (KEY.arguments(b"5e" * 32), KEY.result(b"1"))
    assert call.is_logged
    assert (entry["outcome"]["bytes"], entry["outcome"]["artifact"]) == (3, "k0")


# --- fail closed ---


@pytest.mark.parametrize("flags", [(), ("writes",)], ids=["reading", "consequential"])
async def test_call_that_cannot_be_recorded_is_not_answered_and_the_next_one_is(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    ran: list[str] = []

    async def run(call: Any) -> str:
        ran.append(call.tool)
        return "paid"

    async with audited(tmp_path, Plan().tool("pay", run, trust=trust(*flags))) as found:
        await rename(found, "audit", "away")
        with pytest.raises(StoreUnavailable if flags else OutcomeNotRecorded):
            await found.call("pay")
        with pytest.raises(StoreUnavailable, match="decision log"):
            await found.call("unknown")
        assert (ran == []) is bool(flags)
        await rename(found, "away", "audit")
        settled = await found.call()

        assert not settled.record.is_error
        assert [each["call"]["id"] for each in found.entries if each["event"] == "call-settled"] == [settled.record.id]


async def rename(found: Audited, before: str, after: str) -> None:
    statement = f"ALTER TABLE {before} RENAME TO {after}"
    await found.gateway.store.writer.run(lambda connection: connection.execute(statement).close())


# --- approvals ---


LEA = Principal("user:lea", tenant="acme")
ACTION = ApprovalSubject(ANA, "desk", "shop/pay", "d" * 64, "r1", f'{{"note":"{CANARY}"}}', "a" * 64)
REQUEST = ApprovalRequest(ACTION, "pay", "rule", str(HERE), "money leaves", ("role:lead",), timedelta(minutes=15))
RECORD = ApprovalRecord("approval-1", REQUEST, NOON, NOON + timedelta(minutes=15))


def voted(decision: Any) -> ApprovalRecord:
    return replace(RECORD, entries=(ApprovalVote(LEA, decision, NOON, "5e" * 32, "looks fine"),))


ANNOUNCED: dict[str, tuple[Any, ApprovalRecord, str]] = {
    "requested": ("requested", RECORD, "approval-requested"),
    "voted": ("voted", voted("grant"), "approval-granted"),
    "granted": ("decided", voted("grant"), "approval-granted"),
    "refused": ("decided", voted("refuse"), "approval-refused"),
    "expired": ("expired", RECORD, "approval-expired"),
    "taken": ("taken", voted("grant"), "approval-used"),
    "returned": ("returned", voted("grant"), "approval-returned"),
    "void": ("void", voted("grant"), "approval-voided"),
}


@pytest.mark.parametrize(("kind", "record", "event"), ANNOUNCED.values(), ids=ANNOUNCED)
def test_what_happens_to_approvals_is_in_the_log(kind: Any, record: ApprovalRecord, event: str) -> None:
    entry = written(auditor().approval_entry(kind, record))

    assert entry["event"] == event
    assert entry["caller"]["subject"] == "user:ana"
    assert entry["target"] == {
        "tool": "pay",
        "catalogue": "desk",
        "identity": "shop/pay",
        "definition": "d" * 64,
    }
    assert entry["gate"]["approval"] == "approval-1"
    assert entry["gate"]["digest"] == "a" * 64
    assert entry["gate"]["requestedAt"] == MICROSECONDS
    assert entry["gate"]["expiresAt"] == MICROSECONDS + 15 * 60 * 1_000_000
    assert [(each["approver"], each["shown"]) for each in entry["gate"].get("entries", ())] == [
        ("user:lea", "5e" * 32) for _ in record.entries
    ]
    assert CANARY not in json.dumps(entry)


def test_approved_call_names_its_approval() -> None:
    call = Call("c", "pay", {}, ANA, "desk", "r", checksum="s", approvals=(voted("grant"),))
    call.set_decision("allow", "approval-approved", None)
    unknown = auditor().start_entry(call, Plan().tool("pay", "paid").tools["pay"][0])

    assert written(unknown)["gate"]["approval"] == "approval-1"


# --- operators ---


UNTIL = NOON + timedelta(hours=1)
OF_TOOL = Stop(StopTarget("tool", "pay"), "leaks", "os:ops", NOON, UNTIL)
OF_TOKEN = Stop(StopTarget("token", "5e" * 32), "lost", "os:ops", NOON)
ACTS: dict[str, tuple[Callable[[], AuditBody], str, Mapping[str, Any]]] = {
    "quarantine": (
        lambda: stop_entry(StopChange("add", OF_TOOL, "leaks", "os:ops", NOON), PLACE, at=7),
        "quarantine-added",
        {"kind": "tool", "name": "pay", "note": "leaks", "until": MICROSECONDS + 3_600_000_000},
    ),
    "lifting": (
        lambda: stop_entry(StopChange("lift", replace(OF_TOOL, until=None), "mended", "os:ops", NOON), PLACE, at=7),
        "quarantine-lifted",
        {"kind": "tool", "name": "pay", "note": "mended"},
    ),
    "revoking": (
        lambda: stop_entry(StopChange("add", OF_TOKEN, "lost", "os:ops", NOON), PLACE, at=7),
        "token-revoked",
        {"kind": "token", "name": "5e" * 32, "note": "lost"},
    ),
    "restoring": (
        lambda: stop_entry(StopChange("lift", OF_TOKEN, "found", "os:ops", NOON), PLACE, at=7),
        "token-restored",
        {"kind": "token", "name": "5e" * 32, "note": "found"},
    ),
}


@pytest.mark.parametrize(("make", "event", "acted_on"), ACTS.values(), ids=ACTS)
def test_what_operators_do_names_them_and_what_they_acted_on(
    make: Callable[[], AuditBody], event: str, acted_on: Mapping[str, Any]
) -> None:
    unknown = make()
    entry = written(unknown)

    assert unknown[0] == entry["at"] == 7
    assert (entry["event"], entry["object"]) == (event, acted_on)
    assert entry["caller"]["subject"] == "os:ops"


def test_what_happens_to_the_process_is_in_the_log() -> None:
    assert written(auditor().event_entry("gateway-started"))["event"] == "gateway-started"


def test_clock_counts_microseconds_since_1970() -> None:
    before = time_ns() // 1000

    assert before <= now_microseconds() <= time_ns() // 1000
