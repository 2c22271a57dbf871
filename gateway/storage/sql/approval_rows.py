"""Conversion of approvals, votes and webhook deliveries to rows and back."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from json import dumps, loads
from typing import Any, Final, cast

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
