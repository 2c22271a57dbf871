"""The statements on approvals, compiled once."""

from functools import lru_cache
from typing import Any, Final, Literal

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

from gateway.governance.approvals import ApprovalState
from gateway.storage.prepared import Prepared
from gateway.storage.schema import approval_entries, approval_notices, approvals

_CHANGING: Final = ("state", "decided_at", "reuse_until", "used_at", "used_by", "changed")


def _values(table: Any) -> dict[str, Any]:
    return {column.name: bindparam(column.name, type_=column.type) for column in table.c if column.name != "number"}


def _is(*states: ApprovalState) -> ColumnElement[bool]:
    # Written out, not bound: only then does SQLite use the indexes that are about some states.
    return approvals.c.state.in_([literal_column(f"'{state}'") for state in states])


_OPEN: Final = _is("pending", "granted")
_AT: Final[BindParameter[int]] = bindparam("at")

LATEST_CHANGE: Final = Prepared(
    select(func.coalesce(func.max(approvals.c.changed), literal_column("0")).label("number"))
)
INSERT: Final = Prepared(insert(approvals).values(_values(approvals)))
UPDATE: Final = Prepared(
    update(approvals)
    .values({name: bindparam(name, type_=approvals.c[name].type) for name in _CHANGING})
    .where(approvals.c.id == bindparam("approval"))
)
FIND: Final = Prepared(select(approvals).where(approvals.c.id == bindparam("id")))
OF_ACTION: Final = Prepared(
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
RESEMBLING: Final = Prepared(
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
PENDING_OF: Final = Prepared(
    select(func.count().label("pending"))
    .select_from(approvals)
    .where(approvals.c.owner == bindparam("owner"), _is("pending", "withdrawn"), approvals.c.expires_at > _AT)
)
PENDING: Final = Prepared(
    select(approvals.c.rule, func.count().label("pending"))
    .where(_OPEN, _is("pending"), approvals.c.expires_at > _AT)  # `_OPEN` says no more, but there is an index on it
    .group_by(approvals.c.rule)
)
OVERDUE: Final = Prepared(
    select(approvals)
    .where(approvals.c.expires_at <= _AT, _OPEN)
    .order_by(approvals.c.expires_at)
    .limit(bindparam("limit"))
)
CHANGES: Final = Prepared(
    select(approvals.c.id, approvals.c.changed)
    .where(approvals.c.changed > bindparam("since"))
    .order_by(approvals.c.changed)
    .limit(bindparam("limit"))
)

INSERT_ENTRY: Final = Prepared(insert(approval_entries).values(_values(approval_entries)))
ENTRIES: Final = Prepared(
    select(approval_entries)
    .where(approval_entries.c.approval_id.in_(select(func.json_each(bindparam("ids")).table_valued("value").c.value)))
    .order_by(approval_entries.c.approval_id, approval_entries.c.position)
)

INSERT_NOTICE: Final = Prepared(insert(approval_notices).values(_values(approval_notices)))
WAITING_NOTICES: Final = Prepared(
    select(func.count().label("waiting"))
    .select_from(approval_notices)
    .where(approval_notices.c.webhook == bindparam("webhook"))
)
DUE_NOTICES: Final = Prepared(
    select(approval_notices)
    .where(approval_notices.c.webhook == bindparam("webhook"), approval_notices.c.due_at <= _AT)
    .order_by(approval_notices.c.due_at, approval_notices.c.number)
    .limit(bindparam("limit"))
)
LEASE_NOTICE: Final = Prepared(
    update(approval_notices)
    .values(due_at=bindparam("until"), attempts=approval_notices.c.attempts + literal_column("1"))
    .where(approval_notices.c.id == bindparam("notice"))
)
DELAY_NOTICE: Final = Prepared(
    update(approval_notices).values(due_at=bindparam("until")).where(approval_notices.c.id == bindparam("notice"))
)
DROP_NOTICE: Final = Prepared(delete(approval_notices).where(approval_notices.c.id == bindparam("notice")))

# The newest change stays: whoever follows changes would take smaller numbers for old ones.
# A refusal stands and an approval taken back counts until `expires_at`, however short the retention is.
PRUNABLE: Final = Prepared(
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
PRUNE_NOTICES: Final = Prepared(delete(approval_notices).where(approval_notices.c.at < bindparam("before")))
PRUNE_ENTRIES: Final = Prepared(delete(approval_entries).where(approval_entries.c.approval_id == bindparam("id")))
PRUNE: Final = Prepared(delete(approvals).where(approvals.c.id == bindparam("id")))


@lru_cache(maxsize=128)
def listing(
    state: ApprovalState | None,
    role: Literal["approver", "requester"] | None,
    *,
    by_tool: bool,
    from_the_top: bool,
) -> Prepared:
    """A page, newest first, of what somebody may decide or asked for."""
    wanted = [approvals.c.tenant.is_not_distinct_from(bindparam("tenant")), _visible(role)]
    wanted += [] if state is None else [_in_state(state)]
    wanted += [approvals.c.tool == bindparam("tool")] if by_tool else []
    wanted += [] if from_the_top else [approvals.c.number < bindparam("before")]
    return Prepared(select(approvals).where(*wanted).order_by(approvals.c.number.desc()).limit(bindparam("limit")))


def _visible(role: Literal["approver", "requester"] | None) -> ColumnElement[bool]:
    asked = approvals.c.owner == bindparam("owner")
    held = select(func.json_each(bindparam("names")).table_valued("value", name="held").c.value)
    named = func.json_each(approvals.c.approvers).table_valued("value", name="named")
    may_decide = exists().select_from(named).where(named.c.value.in_(held)).correlate(approvals)
    if role == "requester":
        return asked
    return or_(asked, may_decide) if role is None else and_(not_(asked), may_decide)


def _in_state(state: ApprovalState) -> ColumnElement[bool]:
    """What is past its time is expired, whether or not somebody has noted that yet."""
    if state == "expired":
        return or_(_is("expired"), and_(_OPEN, approvals.c.expires_at <= _AT))
    if state in ("pending", "granted"):
        return and_(_is(state), approvals.c.expires_at > _AT)
    return _is(state)
