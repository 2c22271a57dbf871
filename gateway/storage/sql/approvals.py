"""Approvals, in the same database as their calls, and the statements about them.

A transaction about approvals is one job of the writer, with the footprint of all approvals: requests, decisions and
uses exclude each other in all processes.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache, partial
from json import dumps
from typing import Any, Final, Literal, TypeVar

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal_column,
    not_,
    or_,
    select,
    update,
)

from gateway.approvals import (
    ApprovalChange,
    ApprovalFilter,
    ApprovalRecord,
    ApprovalRequest,
    ApprovalState,
    ApprovalTransaction,
    WebhookDelivery,
)
from gateway.model import Principal
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
from gateway.storage.sql.tables import approval_entries, approval_notices, approvals

_CHANGING: Final = ("state", "decided_at", "reuse_until", "used_at", "used_by", "changed")


def _values(table: Any) -> dict[str, Any]:
    return {column.name: bindparam(column.name, type_=column.type) for column in table.c if column.name != "number"}


def _is(*states: ApprovalState) -> ColumnElement[bool]:
    # Literals, not parameters: only then does SQLite use the partial indexes of some states.
    return approvals.c.state.in_([literal_column(f"'{state}'") for state in states])


_OPEN: Final = _is("pending", "granted")
_AT: Final[BindParameter[int]] = bindparam("at")

LATEST_CHANGE: Final = CompiledStatement(
    select(func.coalesce(func.max(approvals.c.changed), literal_column("0")).label("number"))
)
INSERT: Final = CompiledStatement(insert(approvals).values(_values(approvals)))
UPDATE: Final = CompiledStatement(
    update(approvals)
    .values({name: bindparam(name, type_=approvals.c[name].type) for name in _CHANGING})
    .where(approvals.c.id == bindparam("approval"))
)
FIND: Final = CompiledStatement(select(approvals).where(approvals.c.id == bindparam("id")))
OF_ACTION: Final = CompiledStatement(
    select(approvals)
    .where(
        approvals.c.digest == bindparam("digest"),
        or_(
            _OPEN,
            and_(_is("used"), approvals.c.reuse_until > _AT),
            and_(_is("refused"), approvals.c.expires_at > _AT),
        ),
    )
    .order_by(approvals.c.number.desc())
)
SIMILAR: Final = CompiledStatement(
    select(approvals)
    .where(
        approvals.c.owner == bindparam("owner"),
        _OPEN,
        approvals.c.identity == bindparam("tool"),
        approvals.c.digest != bindparam("digest"),
        or_(approvals.c.turn_id == bindparam("turn_id"), approvals.c.arguments == bindparam("arguments")),
    )
    .order_by(approvals.c.number.desc())
    .limit(literal_column("1"))
)
PENDING_OF: Final = CompiledStatement(
    select(func.count().label("pending"))
    .select_from(approvals)
    .where(approvals.c.owner == bindparam("owner"), _is("pending", "withdrawn"), approvals.c.expires_at > _AT)
)
PENDING: Final = CompiledStatement(
    select(approvals.c.rule, func.count().label("pending"))
    .where(_OPEN, _is("pending"), approvals.c.expires_at > _AT)  # `_OPEN` adds no condition, but has an index
    .group_by(approvals.c.rule)
)
EXPIRED_PENDING: Final = CompiledStatement(
    select(approvals)
    .where(approvals.c.expires_at <= _AT, _OPEN)
    .order_by(approvals.c.expires_at)
    .limit(bindparam("limit"))
)
CHANGES: Final = CompiledStatement(
    select(approvals.c.id, approvals.c.changed)
    .where(approvals.c.changed > bindparam("since"))
    .order_by(approvals.c.changed)
    .limit(bindparam("limit"))
)

INSERT_ENTRY: Final = CompiledStatement(insert(approval_entries).values(_values(approval_entries)))
ENTRIES: Final = CompiledStatement(
    select(approval_entries)
    .where(approval_entries.c.approval_id.in_(select(func.json_each(bindparam("ids")).table_valued("value").c.value)))
    .order_by(approval_entries.c.approval_id, approval_entries.c.position)
)

INSERT_NOTICE: Final = CompiledStatement(insert(approval_notices).values(_values(approval_notices)))
WAITING_NOTICES: Final = CompiledStatement(
    select(func.count().label("waiting"))
    .select_from(approval_notices)
    .where(approval_notices.c.webhook == bindparam("webhook"))
)
DUE_NOTICES: Final = CompiledStatement(
    select(approval_notices)
    .where(approval_notices.c.webhook == bindparam("webhook"), approval_notices.c.due_at <= _AT)
    .order_by(approval_notices.c.due_at, approval_notices.c.number)
    .limit(bindparam("limit"))
)
LEASE_NOTICE: Final = CompiledStatement(
    update(approval_notices)
    .values(due_at=bindparam("until"), attempts=approval_notices.c.attempts + literal_column("1"))
    .where(approval_notices.c.id == bindparam("notice"))
)
DELAY_NOTICE: Final = CompiledStatement(
    update(approval_notices).values(due_at=bindparam("until")).where(approval_notices.c.id == bindparam("notice"))
)
DROP_NOTICE: Final = CompiledStatement(delete(approval_notices).where(approval_notices.c.id == bindparam("notice")))

# The newest change stays: processes that follow changes would take smaller numbers for old ones.
# Refused and withdrawn approvals stay in force until `expires_at`, however short the retention is.
PRUNABLE: Final = CompiledStatement(
    select(approvals.c.id)
    .where(
        approvals.c.expires_at < _AT,
        not_(_OPEN),
        func.coalesce(approvals.c.reuse_until, literal_column("0")) < _AT,
        func.coalesce(approvals.c.decided_at, approvals.c.expires_at) < bindparam("before"),
        approvals.c.changed < select(func.max(approvals.alias("newest").c.changed)).scalar_subquery(),
        not_(exists().where(approval_notices.c.approval_id == approvals.c.id)),
    )
    .order_by(approvals.c.expires_at)
    .limit(bindparam("limit"))
)
PRUNE_NOTICES: Final = CompiledStatement(delete(approval_notices).where(approval_notices.c.at < bindparam("before")))
PRUNE_ENTRIES: Final = CompiledStatement(
    delete(approval_entries).where(approval_entries.c.approval_id == bindparam("id"))
)
PRUNE: Final = CompiledStatement(delete(approvals).where(approvals.c.id == bindparam("id")))


@lru_cache(maxsize=128)
def approval_list_statement(
    state: ApprovalState | None,
    role: Literal["approver", "requester"] | None,
    *,
    by_tool: bool,
    from_the_top: bool,
) -> CompiledStatement:
    """Return the statement of a page, newest first, of approvals that the viewer may decide or has requested."""
    wanted = [approvals.c.tenant.is_not_distinct_from(bindparam("tenant")), _visible(role)]
    wanted += [] if state is None else [_in_state(state)]
    wanted += [approvals.c.tool == bindparam("tool")] if by_tool else []
    wanted += [] if from_the_top else [approvals.c.number < bindparam("before")]
    return CompiledStatement(
        select(approvals).where(*wanted).order_by(approvals.c.number.desc()).limit(bindparam("limit"))
    )


def _visible(role: Literal["approver", "requester"] | None) -> ColumnElement[bool]:
    asked = approvals.c.owner == bindparam("owner")
    held = select(func.json_each(bindparam("names")).table_valued("value", name="held").c.value)
    named = func.json_each(approvals.c.approvers).table_valued("value", name="named")
    may_decide = exists().select_from(named).where(named.c.value.in_(held)).correlate(approvals)
    if role == "requester":
        return asked
    return or_(asked, may_decide) if role is None else and_(not_(asked), may_decide)


def _in_state(state: ApprovalState) -> ColumnElement[bool]:
    """An overdue approval is expired, whether or not a process has recorded that yet."""
    if state == "expired":
        return or_(_is("expired"), and_(_OPEN, approvals.c.expires_at <= _AT))
    if state in ("pending", "granted"):
        return and_(_is(state), approvals.c.expires_at > _AT)
    return _is(state)


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
        statement = approval_list_statement(
            filter.state, filter.role, by_tool=filter.tool is not None, from_the_top=before is None
        )

        def read(connection: sqlite3.Connection) -> tuple[list[ApprovalRecord], str | None]:
            rows = statement.rows(connection, wanted)
            page = rows[:limit]
            return _records(connection, page), str(page[-1]["number"]) if len(rows) > limit else None

        return await self._reader.run(read)

    async def count_pending(self, at: datetime) -> dict[str, int]:
        wanted = {"at": to_microseconds(at)}
        rows = await self._reader.run(lambda connection: PENDING.rows(connection, wanted))
        return {row["rule"]: row["pending"] for row in rows}

    async def list_changes(self, since: int) -> list[tuple[str, int]]:
        wanted = {"since": since, "limit": _CHANGES_AT_ONCE}
        rows = await self._reader.run(lambda connection: CHANGES.rows(connection, wanted))
        return [(row["id"], row["changed"]) for row in rows]

    async def prune(self, at: datetime, *, kept: timedelta) -> int:
        wanted = {"at": to_microseconds(at), "before": to_microseconds(at - kept), "limit": _PRUNED_AT_ONCE}
        await self._change(PRUNE_NOTICES, wanted)
        pruned = 0
        # Readers find them: the writer would delay calls. It deletes a few per transaction, so calls go in between.
        while found := await self._reader.run(lambda connection: PRUNABLE.rows(connection, wanted)):
            pruned += await self._writer.run(partial(_prune_some, wanted=wanted), footprint=APPROVALS)
            if len(found) < _PRUNED_AT_ONCE:
                break
        return pruned

    async def lease_deliveries(
        self, webhook: str, *, at: datetime, until: datetime, limit: int
    ) -> list[tuple[WebhookDelivery, ApprovalRecord]]:
        wanted = {"webhook": webhook, "at": to_microseconds(at), "until": to_microseconds(until), "limit": limit}
        due = await self._reader.run(lambda connection: DUE_NOTICES.rows(connection, {**wanted, "limit": 1}))
        if not due:  # the usual case does not use the writer
            return []
        return await self._writer.run(lambda connection: _lease(connection, wanted), footprint=APPROVALS)

    async def postpone_delivery(self, id: str, *, until: datetime) -> None:
        await self._change(DELAY_NOTICE, {"notice": id, "until": to_microseconds(until)})

    async def delete_delivery(self, id: str) -> None:
        await self._change(DROP_NOTICE, {"notice": id})

    async def _change(self, statement: CompiledStatement, row: dict[str, Any]) -> None:
        await self._writer.run(lambda connection: statement.run(connection, row).rowcount, footprint=APPROVALS)


class _Table:
    """Implements `ApprovalTransaction`."""

    __slots__ = ("_connection", "_noted")

    def __init__(self, connection: sqlite3.Connection, noted: AuditHook | None = None) -> None:
        self._connection = connection
        self._noted = noted

    def find(self, id: str) -> ApprovalRecord | None:
        rows = FIND.rows(self._connection, {"id": id}) if is_storable(id) else []
        return _records(self._connection, rows)[0] if rows else None

    def find_by_digest(self, digest: str, at: datetime) -> Sequence[ApprovalRecord]:
        return self._found(OF_ACTION, digest=digest, at=to_microseconds(at))

    def find_similar(self, request: ApprovalRequest) -> ApprovalRecord | None:
        action = request.action
        found = self._found(
            SIMILAR,
            owner=owner_key(action.principal),
            tool=action.tool,
            digest=action.digest,
            turn_id=request.turn_id,
            arguments=action.arguments,
        )
        return found[0] if found else None

    def count_pending(self, principal: Principal, at: datetime) -> int:
        wanted = {"owner": owner_key(principal), "at": to_microseconds(at)}
        [row] = PENDING_OF.rows(self._connection, wanted)
        return int(row["pending"])

    def find_overdue(self, at: datetime, *, limit: int) -> Sequence[ApprovalRecord]:
        return self._found(EXPIRED_PENDING, at=to_microseconds(at), limit=limit)

    def latest_change(self) -> int:
        [row] = LATEST_CHANGE.rows(self._connection, {})
        return int(row["number"])

    def add(self, record: ApprovalRecord) -> ApprovalRecord:
        changed = self.latest_change() + 1
        INSERT.run(self._connection, {**approval_to_row(record), "changed": changed})
        return self._with_entries(record, changed, "requested", known=0)

    def update(self, record: ApprovalRecord, change: ApprovalChange) -> ApprovalRecord:
        changed = self.latest_change() + 1
        UPDATE.run(self._connection, {**mutable_columns(record), "changed": changed, "approval": record.id})
        known = len(ENTRIES.rows(self._connection, {"ids": dumps([record.id])}))
        return self._with_entries(record, changed, change, known=known)

    def add_delivery(self, notice: WebhookDelivery, *, most: int) -> bool:
        [row] = WAITING_NOTICES.rows(self._connection, {"webhook": notice.webhook})
        if row["waiting"] >= most:
            return False
        INSERT_NOTICE.run(self._connection, notification_to_row(notice))
        return True

    def _with_entries(
        self, record: ApprovalRecord, changed: int, change: ApprovalChange, *, known: int
    ) -> ApprovalRecord:
        for position, entry in enumerate(record.entries[known:], start=known):
            INSERT_ENTRY.run(self._connection, vote_to_row(entry, record.id, position))
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
    for entry in ENTRIES.rows(connection, {"ids": dumps(list(entries))}) if rows else ():
        entries[entry["approval_id"]].append(entry)
    return [approval_from_row(row, entries[row["id"]]) for row in rows]


def _lease(connection: sqlite3.Connection, wanted: dict[str, Any]) -> list[tuple[WebhookDelivery, ApprovalRecord]]:
    table = _Table(connection)
    leased: list[tuple[WebhookDelivery, ApprovalRecord]] = []
    for row in DUE_NOTICES.rows(connection, wanted):
        LEASE_NOTICE.run(connection, {"notice": row["id"], "until": wanted["until"]})
        record = table.find(row["approval_id"])
        assert record is not None, "a notice has its approval"  # noqa: S101 - held by a foreign key
        leased.append((notification_from_row({**row, "attempts": row["attempts"] + 1}), record))
    return leased


def _prune_some(connection: sqlite3.Connection, wanted: dict[str, Any]) -> int:
    ids = PRUNABLE.rows(connection, wanted)
    for row in ids:
        PRUNE_ENTRIES.run(connection, row)
        PRUNE.run(connection, row)
    return len(ids)


def _number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise ValueError("the cursor is not valid")
    return int(cursor)
