"""How approvals, what was decided about them, and notices of both become rows and come back from them."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from json import dumps, loads
from typing import Any, Final, cast

from gateway.core.canonical import canonical
from gateway.core.lines import encode
from gateway.governance.approvals import (
    Action,
    ApprovalEntry,
    ApprovalEvent,
    ApprovalRecord,
    ApprovalRequest,
    ApprovalState,
    Notice,
    Vote,
)
from gateway.governance.principals import Principal
from gateway.storage.rows import microseconds, moment, owner_of

Row = Mapping[str, Any]

_MICROSECOND: Final = timedelta(microseconds=1)


def approval_row(record: ApprovalRecord) -> dict[str, Any]:
    request, action = record.request, record.request.action
    return {
        "id": record.id,
        "digest": action.digest,
        "rule": request.rule,
        "rule_at": request.rule_at,
        "owner": owner_of(action.principal),
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
        "created_at": microseconds(record.created_at),
        "expires_at": microseconds(record.expires_at),
        "reuse_for": None if request.reuse_for is None else request.reuse_for // _MICROSECOND,
        "trace": request.trace,
        **changing_columns(record),
    }


def changing_columns(record: ApprovalRecord) -> dict[str, Any]:
    return {
        "state": record.state,
        "decided_at": _when(record.decided_at),
        "reuse_until": _when(record.reuse_until),
        "used_at": _when(record.used_at),
        "used_by": record.used_by,
    }


def approval_from(row: Row, entries: Iterable[Row]) -> ApprovalRecord:
    return ApprovalRecord(
        id=row["id"],
        request=_request(row),
        created_at=moment(row["created_at"]),
        expires_at=moment(row["expires_at"]),
        state=cast("ApprovalState", row["state"]),  # only such words are written; likewise below
        entries=tuple(map(_entry, entries)),
        decided_at=_moment(row["decided_at"]),
        reuse_until=_moment(row["reuse_until"]),
        used_at=_moment(row["used_at"]),
        used_by=row["used_by"],
        changed=row["changed"],
    )


def entry_row(entry: ApprovalEntry, approval_id: str, position: int) -> dict[str, Any]:
    return {
        "approval_id": approval_id,
        "owner": owner_of(entry.approver),
        "position": position,
        "roles": canonical(sorted(entry.approver.roles)),
        "decision": entry.decision,
        "note": None if entry.note is None else encode(entry.note).decode(),
        "resolution": entry.resolution,
        "at": microseconds(entry.at),
        "shown_digest": entry.shown_digest,
        "trace": entry.trace,
    }


def notice_row(notice: Notice) -> dict[str, Any]:
    return {
        "id": notice.id,
        "webhook": notice.webhook,
        "approval_id": notice.approval_id,
        "event": notice.event,
        "state": notice.state,
        "at": microseconds(notice.at),
        "attempts": notice.attempts,
        "due_at": microseconds(notice.at),
    }


def notice_from(row: Row) -> Notice:
    return Notice(
        id=row["id"],
        webhook=row["webhook"],
        event=cast("ApprovalEvent", row["event"]),
        approval_id=row["approval_id"],
        state=cast("ApprovalState", row["state"]),
        at=moment(row["at"]),
        attempts=row["attempts"],
    )


def _request(row: Row) -> ApprovalRequest:
    action = Action(
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


def _entry(row: Row) -> ApprovalEntry:
    return ApprovalEntry(
        approver=_principal(row),
        decision=cast("Vote", row["decision"]),
        at=moment(row["at"]),
        shown_digest=row["shown_digest"],
        note=row["note"],
        resolution=row["resolution"],
        trace=row["trace"],
    )


def _principal(row: Row) -> Principal:
    tenant, subject = loads(row["owner"])
    return Principal(subject, roles=frozenset(loads(row["roles"])), tenant=tenant)


def _when(at: datetime | None) -> int | None:
    return None if at is None else microseconds(at)


def _moment(at: int | None) -> datetime | None:
    return None if at is None else moment(at)
