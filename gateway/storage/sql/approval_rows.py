"""Conversion of approvals, votes and webhook deliveries to rows and back, and the statements about them."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from json import dumps, loads
from typing import Any, Final, Literal, cast

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
    ApprovalEvent,
    ApprovalRecord,
    ApprovalRequest,
    ApprovalState,
    ApprovalSubject,
    ApprovalVote,
    Vote,
    WebhookDelivery,
)
from gateway.artifacts import encode_utf8
from gateway.model import Principal, canonical
from gateway.storage.sql.call_rows import from_microseconds, owner_key, to_microseconds
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.tables import approval_entries, approval_notices, approvals

Row = Mapping[str, Any]

_MICROSECOND: Final = timedelta(microseconds=1)


def approval_to_row(record: ApprovalRecord) -> dict[str, Any]:
    request, action = record.request, record.request.action
    return {
        "id": record.id,
        "digest": action.digest,
        "rule": request.rule,
        "rule_at": request.rule_at,
        "owner": owner_key(action.principal),
        "tenant": action.principal.tenant,
        "subject": action.principal.subject,
        "roles": canonical(sorted(action.principal.roles)),
        "catalogue": action.catalogue,
        "tool": request.advertised,
        "identity": action.tool,
        "definition": action.definition,
        "revision": action.revision,
        "turn_id": request.turn_id,
        "call_id": request.call_id,
        "arguments": action.arguments,
        "show": canonical(list(request.show)),
        "reason": request.reason,
        "approvers": canonical(list(request.approvers)),
        "needed": request.needed,
        "resolution": None if request.resolution is None else dumps(request.resolution),
        "created_at": to_microseconds(record.created_at),
        "expires_at": to_microseconds(record.expires_at),
        "reuse_for": None if request.reuse_for is None else request.reuse_for // _MICROSECOND,
        "trace": request.trace,
        **mutable_columns(record),
    }


def mutable_columns(record: ApprovalRecord) -> dict[str, Any]:
    return {
        "state": record.state,
        "decided_at": _when(record.decided_at),
        "reuse_until": _when(record.reuse_until),
        "used_at": _when(record.used_at),
        "used_by": record.used_by,
    }


def approval_from_row(row: Row, entries: Iterable[Row]) -> ApprovalRecord:
    return ApprovalRecord(
        id=row["id"],
        request=_request(row),
        created_at=from_microseconds(row["created_at"]),
        expires_at=from_microseconds(row["expires_at"]),
        state=cast("ApprovalState", row["state"]),  # only such words are written; likewise below
        entries=tuple(map(_entry, entries)),
        decided_at=_moment(row["decided_at"]),
        reuse_until=_moment(row["reuse_until"]),
        used_at=_moment(row["used_at"]),
        used_by=row["used_by"],
        changed=row["changed"],
    )


def vote_to_row(entry: ApprovalVote, approval_id: str, position: int) -> dict[str, Any]:
    return {
        "approval_id": approval_id,
        "owner": owner_key(entry.approver),
        "position": position,
        "roles": canonical(sorted(entry.approver.roles)),
        "decision": entry.decision,
        "note": None if entry.note is None else encode_utf8(entry.note).decode(),
        "resolution": entry.resolution,
        "at": to_microseconds(entry.at),
        "shown_digest": entry.shown_digest,
        "trace": entry.trace,
    }


def notification_to_row(notice: WebhookDelivery) -> dict[str, Any]:
    return {
        "id": notice.id,
        "webhook": notice.webhook,
        "approval_id": notice.approval_id,
        "event": notice.event,
        "state": notice.state,
        "at": to_microseconds(notice.at),
        "attempts": notice.attempts,
        "due_at": to_microseconds(notice.at),
    }


def notification_from_row(row: Row) -> WebhookDelivery:
    return WebhookDelivery(
        id=row["id"],
        webhook=row["webhook"],
        event=cast("ApprovalEvent", row["event"]),
        approval_id=row["approval_id"],
        state=cast("ApprovalState", row["state"]),
        at=from_microseconds(row["at"]),
        attempts=row["attempts"],
    )


def _request(row: Row) -> ApprovalRequest:
    action = ApprovalSubject(
        principal=_principal(row),
        catalogue=row["catalogue"],
        tool=row["identity"],
        definition=row["definition"],
        revision=row["revision"],
        arguments=row["arguments"],
        digest=row["digest"],
    )
    return ApprovalRequest(
        action=action,
        advertised=row["tool"],
        rule=row["rule"],
        rule_at=row["rule_at"],
        reason=row["reason"],
        approvers=tuple(loads(row["approvers"])),
        timeout=(row["expires_at"] - row["created_at"]) * _MICROSECOND,
        needed=row["needed"],
        show=tuple(loads(row["show"])),
        resolution=None if row["resolution"] is None else loads(row["resolution"]),
        reuse_for=None if row["reuse_for"] is None else row["reuse_for"] * _MICROSECOND,
        turn_id=row["turn_id"],
        call_id=row["call_id"],
        trace=row["trace"],
    )


def _entry(row: Row) -> ApprovalVote:
    return ApprovalVote(
        approver=_principal(row),
        decision=cast("Vote", row["decision"]),
        at=from_microseconds(row["at"]),
        shown_digest=row["shown_digest"],
        note=row["note"],
        resolution=row["resolution"],
        trace=row["trace"],
    )


def _principal(row: Row) -> Principal:
    tenant, subject = loads(row["owner"])
    return Principal(subject, roles=frozenset(loads(row["roles"])), tenant=tenant)


def _when(at: datetime | None) -> int | None:
    return None if at is None else to_microseconds(at)


def _moment(at: int | None) -> datetime | None:
    return None if at is None else from_microseconds(at)


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
