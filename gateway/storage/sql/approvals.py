"""Approvals, in the same database as their calls.

A transaction about approvals is one job of the writer, with the footprint of all approvals: requests, decisions and
uses exclude each other in all processes.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from json import dumps
from typing import Any, Final, TypeVar

from gateway.approvals import (
    ApprovalChange,
    ApprovalFilter,
    ApprovalRecord,
    ApprovalRequest,
    ApprovalTransaction,
    WebhookDelivery,
)
from gateway.model import Principal
from gateway.storage.sql import approval_rows as statements
from gateway.storage.sql.approval_rows import (
    approval_from_row,
    approval_to_row,
    mutable_columns,
    notification_from_row,
    notification_to_row,
    vote_to_row,
)
from gateway.storage.sql.call_rows import owner_key, to_microseconds
from gateway.storage.sql.column_values import is_storable
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.engine_base import ReadPool
from gateway.storage.sql.group_commit import GroupCommit
from gateway.storage.sql.lock_keys import APPROVALS

T = TypeVar("T")
AuditHook = Callable[[sqlite3.Connection, ApprovalChange, ApprovalRecord], None]
"""Records a change of an approval, in the transaction of the change."""

LARGEST_PAGE: Final = 200

_CHANGES_AT_ONCE: Final = 1000
_PRUNED_AT_ONCE: Final = 200
_BEFORE_RUNNING: Final = 1.0
"""Seconds a held call waits for its approval; after that it does not run, and the approval can be used again."""


class SqlApprovalStore:
    """Implements `gateway.approvals.approval_store.ApprovalStore`. Nothing about approvals is cached in memory."""

    def __init__(self, writer: GroupCommit, reader: ReadPool, *, noted: AuditHook | None = None) -> None:
        self._writer = writer
        self._reader = reader
        self._noted = noted

    async def transact(
        self, work: Callable[[ApprovalTransaction], T], *, undo: Callable[[ApprovalTransaction], None] | None = None
    ) -> T:
        if undo is None:
            return await self._writer.run(lambda connection: work(_Table(connection, self._noted)), footprint=APPROVALS)
        taking_back = undo
        return await self._writer.run(
            lambda connection: work(_Table(connection, self._noted)),
            within=_BEFORE_RUNNING,
            undo=lambda connection: taking_back(_Table(connection, self._noted)),
            footprint=APPROVALS,
        )

    async def find(self, id: str) -> ApprovalRecord | None:
        return await self._reader.run(lambda connection: _Table(connection).find(id))

    async def list_page(
        self, filter: ApprovalFilter, *, limit: int, before: str | None = None
    ) -> tuple[list[ApprovalRecord], str | None]:
        if not 1 <= limit <= LARGEST_PAGE:
            raise ValueError(f"a page has 1 to {LARGEST_PAGE} approvals, not {limit}")
        wanted: dict[str, Any] = {
            "tenant": filter.viewer.tenant,
            "owner": owner_key(filter.viewer),
            "names": dumps(sorted(filter.names)),
            "at": to_microseconds(filter.at),
            "tool": filter.tool,
            "before": None if before is None else _number(before),
            "limit": limit + 1,
        }
        if not is_storable(filter.tool or ""):
            return [], None
        statement = statements.approval_list_statement(
            filter.state, filter.role, by_tool=filter.tool is not None, from_the_top=before is None
        )

        def read(connection: sqlite3.Connection) -> tuple[list[ApprovalRecord], str | None]:
            rows = statement.rows(connection, wanted)
            page = rows[:limit]
            return _records(connection, page), str(page[-1]["number"]) if len(rows) > limit else None

        return await self._reader.run(read)

    async def count_pending(self, at: datetime) -> dict[str, int]:
        wanted = {"at": to_microseconds(at)}
        rows = await self._reader.run(lambda connection: statements.PENDING.rows(connection, wanted))
        return {row["rule"]: row["pending"] for row in rows}

    async def list_changes(self, since: int) -> list[tuple[str, int]]:
        wanted = {"since": since, "limit": _CHANGES_AT_ONCE}
        rows = await self._reader.run(lambda connection: statements.CHANGES.rows(connection, wanted))
        return [(row["id"], row["changed"]) for row in rows]

    async def prune(self, at: datetime, *, kept: timedelta) -> int:
        wanted = {"at": to_microseconds(at), "before": to_microseconds(at - kept), "limit": _PRUNED_AT_ONCE}
        await self._change(statements.PRUNE_NOTICES, wanted)
        pruned = 0
        # Readers find them: the writer would delay calls. It deletes a few per transaction, so calls go in between.
        while found := await self._reader.run(lambda connection: statements.PRUNABLE.rows(connection, wanted)):
            pruned += await self._writer.run(partial(_prune_some, wanted=wanted), footprint=APPROVALS)
            if len(found) < _PRUNED_AT_ONCE:
                break
        return pruned

    async def lease_deliveries(
        self, webhook: str, *, at: datetime, until: datetime, limit: int
    ) -> list[tuple[WebhookDelivery, ApprovalRecord]]:
        wanted = {"webhook": webhook, "at": to_microseconds(at), "until": to_microseconds(until), "limit": limit}
        due = await self._reader.run(lambda connection: statements.DUE_NOTICES.rows(connection, {**wanted, "limit": 1}))
        if not due:  # the usual case does not use the writer
            return []
        return await self._writer.run(lambda connection: _lease(connection, wanted), footprint=APPROVALS)

    async def postpone_delivery(self, id: str, *, until: datetime) -> None:
        await self._change(statements.DELAY_NOTICE, {"notice": id, "until": to_microseconds(until)})

    async def delete_delivery(self, id: str) -> None:
        await self._change(statements.DROP_NOTICE, {"notice": id})

    async def _change(self, statement: CompiledStatement, row: dict[str, Any]) -> None:
        await self._writer.run(lambda connection: statement.run(connection, row).rowcount, footprint=APPROVALS)


class _Table:
    """Implements `ApprovalTransaction`."""

    __slots__ = ("_connection", "_noted")

    def __init__(self, connection: sqlite3.Connection, noted: AuditHook | None = None) -> None:
        self._connection = connection
        self._noted = noted

    def find(self, id: str) -> ApprovalRecord | None:
        rows = statements.FIND.rows(self._connection, {"id": id}) if is_storable(id) else []
        return _records(self._connection, rows)[0] if rows else None

    def find_by_digest(self, digest: str, at: datetime) -> Sequence[ApprovalRecord]:
        return self._found(statements.OF_ACTION, digest=digest, at=to_microseconds(at))

    def find_similar(self, request: ApprovalRequest) -> ApprovalRecord | None:
        action = request.action
        found = self._found(
            statements.SIMILAR,
            owner=owner_key(action.principal),
            tool=action.tool,
            digest=action.digest,
            turn_id=request.turn_id,
            arguments=action.arguments,
        )
        return found[0] if found else None

    def count_pending(self, principal: Principal, at: datetime) -> int:
        wanted = {"owner": owner_key(principal), "at": to_microseconds(at)}
        [row] = statements.PENDING_OF.rows(self._connection, wanted)
        return int(row["pending"])

    def find_overdue(self, at: datetime, *, limit: int) -> Sequence[ApprovalRecord]:
        return self._found(statements.EXPIRED_PENDING, at=to_microseconds(at), limit=limit)

    def latest_change(self) -> int:
        [row] = statements.LATEST_CHANGE.rows(self._connection, {})
        return int(row["number"])

    def add(self, record: ApprovalRecord) -> ApprovalRecord:
        changed = self.latest_change() + 1
        statements.INSERT.run(self._connection, {**approval_to_row(record), "changed": changed})
        return self._with_entries(record, changed, "requested", known=0)

    def update(self, record: ApprovalRecord, change: ApprovalChange) -> ApprovalRecord:
        changed = self.latest_change() + 1
        statements.UPDATE.run(self._connection, {**mutable_columns(record), "changed": changed, "approval": record.id})
        known = len(statements.ENTRIES.rows(self._connection, {"ids": dumps([record.id])}))
        return self._with_entries(record, changed, change, known=known)

    def add_delivery(self, notice: WebhookDelivery, *, most: int) -> bool:
        [row] = statements.WAITING_NOTICES.rows(self._connection, {"webhook": notice.webhook})
        if row["waiting"] >= most:
            return False
        statements.INSERT_NOTICE.run(self._connection, notification_to_row(notice))
        return True

    def _with_entries(
        self, record: ApprovalRecord, changed: int, change: ApprovalChange, *, known: int
    ) -> ApprovalRecord:
        for position, entry in enumerate(record.entries[known:], start=known):
            statements.INSERT_ENTRY.run(self._connection, vote_to_row(entry, record.id, position))
        if self._noted is not None:
            self._noted(self._connection, change, record)
        return replace(record, changed=changed)

    def _found(self, statement: CompiledStatement, **wanted: Any) -> list[ApprovalRecord]:
        return _records(self._connection, statement.rows(self._connection, wanted))


def find_approvals(connection: sqlite3.Connection, ids: Iterable[str]) -> list[ApprovalRecord]:
    """Return the stored approvals of these ids."""
    return [found for id in ids if is_storable(id) and (found := _Table(connection).find(id)) is not None]


def _records(connection: sqlite3.Connection, rows: Sequence[dict[str, Any]]) -> list[ApprovalRecord]:
    entries: dict[str, list[dict[str, Any]]] = {row["id"]: [] for row in rows}
    for entry in statements.ENTRIES.rows(connection, {"ids": dumps(list(entries))}) if rows else ():
        entries[entry["approval_id"]].append(entry)
    return [approval_from_row(row, entries[row["id"]]) for row in rows]


def _lease(connection: sqlite3.Connection, wanted: dict[str, Any]) -> list[tuple[WebhookDelivery, ApprovalRecord]]:
    table = _Table(connection)
    leased: list[tuple[WebhookDelivery, ApprovalRecord]] = []
    for row in statements.DUE_NOTICES.rows(connection, wanted):
        statements.LEASE_NOTICE.run(connection, {"notice": row["id"], "until": wanted["until"]})
        record = table.find(row["approval_id"])
        assert record is not None, "a notice has its approval"  # noqa: S101 - held by a foreign key
        leased.append((notification_from_row({**row, "attempts": row["attempts"] + 1}), record))
    return leased


def _prune_some(connection: sqlite3.Connection, wanted: dict[str, Any]) -> int:
    ids = statements.PRUNABLE.rows(connection, wanted)
    for row in ids:
        statements.PRUNE_ENTRIES.run(connection, row)
        statements.PRUNE.run(connection, row)
    return len(ids)


def _number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise ValueError("the cursor is not valid")
    return int(cursor)
