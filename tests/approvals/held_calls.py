"""Held calls, their callers and their approvers, for the tests of approvals."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_bytes
from time import time_ns
from typing import Any
from uuid import uuid4

from gateway.approvals.approval_store import ApprovalRequest, ApprovalSubject, make_action
from gateway.approvals.lifecycle import HoldStatus
from gateway.approvals.service import ApprovalEventRecord, ApprovalService
from gateway.audit.content_hash import ContentKey
from gateway.audit.entries import AuditOrigin
from gateway.engine.records.auditor import Auditor
from gateway.model.caller import Principal
from gateway.storage.sql.approvals import SqlApprovalStore
from gateway.storage.sql.audit_log import AuditLog
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LEAD = "role:finance-lead"
PLACE = AuditOrigin("desk", "r1", "r1")

ADA = Principal("user:ada", roles=frozenset({"role:agent"}), tenant="acme")
LEA, LEO, LIV = (Principal(f"user:{name}", tenant="acme") for name in ("lea", "leo", "liv"))
MAX = Principal("user:max", tenant="acme")
STRANGER = Principal("user:lea", tenant="umbrella")


class Clock:
    """Shows the time that it is set to."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **duration: float) -> datetime:
        self.now += timedelta(**duration)
        return self.now


class Directory:
    """Which subject holds which roles now."""

    def __init__(self) -> None:
        self.roles = {"user:lea": {LEAD}, "user:leo": {LEAD}, "user:liv": {LEAD}}

    def __call__(self, principal: Principal) -> frozenset[str]:
        return principal.names | self.roles.get(principal.subject, set())


class ApprovalFixture:
    """Approvals over a real store, with a clock and a role directory that tests can change, and published events."""

    def __init__(self, store: SqliteStore, clock: Clock, directory: Directory, **options: Any) -> None:
        self.records = store
        self.clock = clock
        self.directory = directory
        key = ContentKey(token_bytes(32))
        log = AuditLog(lambda: f"desk-{uuid4().hex}", PLACE, clock=time_ns, key=key)
        store.use_audit_log(log)
        auditor = Auditor(lambda: PLACE, key, clock=time_ns)
        self.store = SqlApprovalStore(
            store.writer,
            store.reader,
            noted=lambda connection, change, record: log.append(connection, [auditor.approval_entry(change, record)]),
        )
        self.announced: list[ApprovalEventRecord] = []
        self.served = "r1"
        options = {"look_every": 0.01, "announce": self.announced.append, "served": lambda: self.served, **options}
        self.approvals = ApprovalService(self.store, held=directory, clock=clock, **options)

    @property
    def kinds(self) -> list[str]:
        return [each.kind for each in self.announced]

    async def pending(self, *requests: ApprovalRequest) -> str:
        """Request an approval now and return its id."""
        standing = await self.approvals.ask(requests or [refund()])
        assert standing.state == "pending"
        return standing.approvals[0].id

    async def granted(self, *requests: ApprovalRequest) -> str:
        id = await self.pending(*requests)
        record = await self.approvals.decide(id, LEA, "grant")
        assert record.state == "granted"
        return id

    async def again(self, request: ApprovalRequest | None = None, **options: Any) -> HoldStatus:
        return await self.approvals.ask([request or refund()], **options)


@asynccontextmanager
async def make_approval_fixture(
    path: Path, *, clock: Clock | None = None, directory: Directory | None = None, **options: Any
) -> AsyncIterator[ApprovalFixture]:
    store = await open_sqlite_store(path)
    desk = ApprovalFixture(store, clock or Clock(), directory or Directory(), **options)
    yield desk
    await desk.approvals.close()
    await store.close()


def action(principal: Principal = ADA, **changes: Any) -> ApprovalSubject:
    named = {"catalogue": "support", "tool": "payments/refund", "definition": "d1", "revision": "r1"}
    return make_action(principal, **{**named, "arguments": {"amount": 700, "order": "A-1"}, **changes})


def refund(about: ApprovalSubject | None = None, **changes: Any) -> ApprovalRequest:
    made = ApprovalRequest(
        action=about or action(),
        advertised="payment_refund",
        rule="refunds-over-500",
        rule_at="configs/gates.yaml:4:18",
        reason="A refund above the limit",
        approvers=(LEAD,),
        timeout=timedelta(minutes=30),
        turn_id="turn",
        call_id="call",
    )
    return replace(made, **changes)
