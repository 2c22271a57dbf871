"""Export of entries: JSON lines that can be verified again, CEF and OCSF for event collectors.

Delivery at least once is enough: shard and number of an entry never change, so receivers can detect duplicates.

OCSF (one JSON object per line): calls are API Activity (6003), decisions and approvals Authorize Session (3003),
actions of operators Entity Management (3004), starts and stops Application Lifecycle (6002). `unmapped` has the whole
entry, so nothing is lost.

CEF (ArcSight Common Event Format, version 0): no value can end a field or a line. Bodies are untrusted: a field that is
missing or of another type is empty.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from typing import Any, Final, Literal, NamedTuple

import orjson

from gateway.audit.chain import ChainRow, parse_body
from gateway.audit.json_lines import UnreadableLog, to_line

SEVERITIES: Final[Mapping[str, int]] = {
    "call-unknown": 3,
    "approval-voided": 3,
    "quarantine-added": 4,
    "quarantine-lifted": 3,
    "definition-changed": 4,
    "definition-restored": 3,
    "definition-accepted": 3,
    "grant-requested": 2,
    "grant-approved": 4,
    "grant-refused": 3,
    "grant-revoked": 3,
    "token-revoked": 3,
    "token-restored": 3,
    "key-rotated": 3,
    "log-pruned": 3,
}
"""Severity in OCSF from 1, informational, to 5, critical; for other events the decision determines it."""

_split_path: Final = cache(lambda path: tuple(path.split(".")))  # only this module writes paths, so they are few
_EFFECT_SEVERITIES: Final = {"allow": 1, "hold": 2, "deny": 3}
_HIGH_SEVERITY_REASONS: Final = frozenset(
    {"approval-mismatch", "quarantined", "definition-changed", "config-expired", "check-failed", "audit-unavailable"}
)


class EntryFields:
    """Texts and numbers of a body by path: `caller.subject`."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def text(self, path: str) -> str:
        found = self._find(path)
        return found if isinstance(found, str) else ""

    def number(self, path: str) -> int | None:
        found = self._find(path)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def texts(self, path: str) -> list[str]:
        found = self._find(path)
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    @property
    def event(self) -> str:
        return self.text("event")

    @property
    def last_approver(self) -> str:
        entries = self._find("gate.entries")
        last = entries[-1] if isinstance(entries, list) and entries else None
        return EntryFields(last).text("approver") if isinstance(last, dict) else ""

    @property
    def severity(self) -> int:
        if self.text("decision.reason") in _HIGH_SEVERITY_REASONS:
            return 4
        listed = SEVERITIES.get(self.event)
        return _EFFECT_SEVERITIES.get(self.text("decision.effect"), 1) if listed is None else listed

    def _find(self, path: str) -> Any:
        found: Any = self._body
        for name in _split_path(path):
            found = found.get(name) if isinstance(found, dict) else None
        return found


PRODUCT: Final = "agent-gateway"

_SEVERITY: Final = {1: 2, 2: 4, 3: 6, 4: 8, 5: 10}


def cef_line(row: ChainRow, body: Mapping[str, Any], version: str) -> bytes:
    fields = EntryFields(body)
    header = (PRODUCT, PRODUCT, version, fields.event, fields.event.replace("-", " "), str(_SEVERITY[fields.severity]))
    extension = " ".join(f"{key}={_to_value(value)}" for key, value in _list_extension(row, fields) if value)
    line = "|".join(("CEF:0", *map(_to_header, header), extension))
    return line.encode("utf-8", "replace") + b"\n"


def _list_extension(row: ChainRow, fields: EntryFields) -> Iterator[tuple[str, str]]:
    yield "rt", str((fields.number("at") or 0) // 1000)
    yield "externalId", f"{row.shard}:{row.seq}"
    yield "dvchost", fields.text("place.node")
    yield "act", fields.text("decision.effect")
    yield "outcome", fields.text("outcome.state")
    yield "reason", fields.text("decision.reason") or fields.text("outcome.errorType")
    yield "suser", fields.text("caller.subject")
    yield "spriv", ",".join(fields.texts("caller.roles"))
    yield "shost", fields.text("caller.client.address")
    yield "requestClientApplication", fields.text("caller.client.name")
    yield "gatewayAuthMethod", fields.text("caller.authMethod")
    yield "cnt", str(fields.number("counted.number") or "")
    yield "duser", fields.last_approver
    yield "msg", fields.text("object.note") or fields.text("decision.position")
    custom = [(f"cs{number}", *each) for number, each in enumerate(_list_custom(row, fields), start=1)]
    custom += [("flexString1", "issuer", fields.text("caller.issuer"))]
    custom += [("flexString2", "token", fields.text("caller.token"))]
    for key, label, value in custom:
        if value:
            yield f"{key}Label", label
            yield key, value


def _list_custom(row: ChainRow, fields: EntryFields) -> Iterator[tuple[str, str]]:
    """Yield the six custom strings of CEF, each always at the same number."""
    yield "tool", fields.text("target.tool") or fields.text("object.name")
    yield "catalogue", fields.text("target.catalogue")
    yield "tenant", fields.text("caller.tenant")
    yield "call", fields.text("call.id")
    yield "rules", ",".join(fields.texts("decision.rules"))
    yield "hash", row.hash.hex()


def _to_header(text: str) -> str:
    return _escape(text).replace("\\", "\\\\").replace("|", "\\|")


def _to_value(text: str) -> str:
    lines = text.replace("\\", "\\\\").replace("=", "\\=").replace("\r", "\\r").replace("\n", "\\n")
    return _escape(lines)


def _escape(text: str) -> str:
    """Replace unprintable characters by their code points in angle brackets."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"<U+{ord(c):04X}>" for c in text)


OCSF_VERSION: Final = "1.6.0"
MAPPING_VERSION: Final = "1"
"""Of this mapping. It is increased when a field moves, so that receivers notice."""


class _Class(NamedTuple):
    uid: int
    name: str
    category: str


class _Activity(NamedTuple):
    of: _Class
    id: int
    name: str


_CALLS: Final = _Class(6003, "API Activity", "Application Activity")
_LIFECYCLE: Final = _Class(6002, "Application Lifecycle", "Application Activity")
_DECISIONS: Final = _Class(3003, "Authorize Session", "Identity & Access Management")
_ENTITIES: Final = _Class(3004, "Entity Management", "Identity & Access Management")

_ACTIVITIES: Final[Mapping[str, _Activity]] = {
    "call-started": _Activity(_CALLS, 99, "Call started"),
    "call-settled": _Activity(_CALLS, 99, "Call settled"),
    "call-unknown": _Activity(_CALLS, 99, "Call unknown"),
    "call-replayed": _Activity(_CALLS, 99, "Call replayed"),
    "call-decided": _Activity(_DECISIONS, 99, "Decide"),
    "refusals-counted": _Activity(_DECISIONS, 99, "Count refusals"),
    "approval-requested": _Activity(_DECISIONS, 99, "Request approval"),
    "approval-granted": _Activity(_DECISIONS, 1, "Assign Privileges"),
    "approval-refused": _Activity(_DECISIONS, 99, "Refuse approval"),
    "approval-expired": _Activity(_DECISIONS, 99, "Expire approval"),
    "approval-used": _Activity(_DECISIONS, 99, "Use approval"),
    "approval-returned": _Activity(_DECISIONS, 99, "Return approval"),
    "approval-voided": _Activity(_DECISIONS, 99, "Void approval"),
    "approval-withdrawn": _Activity(_DECISIONS, 99, "Withdraw approval"),
    "gateway-started": _Activity(_LIFECYCLE, 3, "Start"),
    "gateway-stopped": _Activity(_LIFECYCLE, 4, "Stop"),
    "quarantine-added": _Activity(_ENTITIES, 1, "Create"),
    "quarantine-lifted": _Activity(_ENTITIES, 4, "Delete"),
    "token-revoked": _Activity(_ENTITIES, 4, "Delete"),
    "token-restored": _Activity(_ENTITIES, 3, "Update"),
    "definition-changed": _Activity(_ENTITIES, 3, "Update"),
    "definition-restored": _Activity(_ENTITIES, 3, "Update"),
    "definition-accepted": _Activity(_ENTITIES, 3, "Update"),
    "grant-requested": _Activity(_DECISIONS, 99, "Request grant"),
    "grant-approved": _Activity(_DECISIONS, 1, "Assign Privileges"),
    "grant-refused": _Activity(_DECISIONS, 99, "Refuse grant"),
    "grant-revoked": _Activity(_DECISIONS, 2, "Revoke Privileges"),
    "config-published": _Activity(_ENTITIES, 3, "Update"),
    "key-rotated": _Activity(_ENTITIES, 3, "Update"),
    "shard-opened": _Activity(_ENTITIES, 1, "Create"),
    "log-pruned": _Activity(_ENTITIES, 4, "Delete"),
}
_OTHER: Final = _Activity(_ENTITIES, 99, "Other")

_SEVERITIES: Final = {1: "Informational", 2: "Low", 3: "Medium", 4: "High", 5: "Critical"}
_STATES: Final = {"ok": (1, "Success"), "unknown": (0, "Unknown"), "": (0, "Unknown")}
_ACTIONS: Final = {"allow": (1, "Allowed", 1, "Allowed"), "deny": (2, "Denied", 2, "Blocked")}
_HELD: Final = (99, "Held", 99, "Held")


def ocsf_line(row: ChainRow, body: Mapping[str, Any], version: str) -> bytes:
    return orjson.dumps(ocsf_event(row, body, version)) + b"\n"


def ocsf_event(row: ChainRow, body: Mapping[str, Any], version: str) -> dict[str, Any]:
    fields = EntryFields(body)
    activity = _ACTIVITIES.get(fields.event, _OTHER)
    own = {_CALLS: _to_call, _DECISIONS: _to_decision, _ENTITIES: _to_entity, _LIFECYCLE: _to_lifecycle}[activity.of]
    return {
        "activity_id": activity.id,
        "activity_name": activity.name,
        "category_uid": activity.of.uid // 1000,
        "category_name": activity.of.category,
        "class_uid": activity.of.uid,
        "class_name": activity.of.name,
        "type_uid": activity.of.uid * 100 + activity.id,
        "severity_id": fields.severity,
        "severity": _SEVERITIES[fields.severity],
        "time": (fields.number("at") or 0) // 1000,
        "metadata": _build_metadata(row, fields, version),
        **_build_status(fields),
        **_build_action(fields),
        **own(fields, version),
        "unmapped": {
            "gateway": {
                "mapping": MAPPING_VERSION,
                "entry": body,
                "shard": row.shard,
                "seq": row.seq,
                "prev": row.prev.hex(),
                "hash": row.hash.hex(),
            }
        },
    }


def _build_metadata(row: ChainRow, fields: EntryFields, version: str) -> dict[str, Any]:
    return {
        "version": OCSF_VERSION,
        "product": _build_product(version),
        "uid": f"{row.shard}:{row.seq}",
        "sequence": row.seq,
        "event_code": fields.event,
        **_without_empty(correlation_uid=fields.text("call.id"), tenant_uid=fields.text("caller.tenant")),
        **({"profiles": ["security_control"]} if fields.text("decision.effect") else {}),
    }


def _build_product(version: str) -> dict[str, str]:
    return {"name": PRODUCT, "vendor_name": PRODUCT, "version": version}


def _build_status(fields: EntryFields) -> dict[str, Any]:
    id, name = _STATES.get(fields.text("outcome.state"), (2, "Failure"))
    code = fields.text("outcome.errorType") or fields.text("decision.reason")
    return {"status_id": id, "status": name, **_without_empty(status_code=code)}


def _build_action(fields: EntryFields) -> dict[str, Any]:
    effect = fields.text("decision.effect")
    if not effect:
        return {}
    id, name, disposition_id, disposition = _ACTIONS.get(effect, _HELD)
    return {"action_id": id, "action": name, "disposition_id": disposition_id, "disposition": disposition}


def _build_user(fields: EntryFields) -> dict[str, Any]:
    subject = fields.text("caller.subject") or "unknown"
    groups = [{"name": role} for role in fields.texts("caller.roles")]
    return {"uid": subject, "name": subject, **({"groups": groups} if groups else {})}


def _build_actor(fields: EntryFields, user: dict[str, Any]) -> dict[str, Any]:
    """Return the actor; for callers also the issuer, the credential and the program."""
    issuer, token = fields.text("caller.issuer"), fields.text("caller.token")
    session = _without_empty(issuer=issuer, credential_uid=token)
    provider = _without_empty(name=issuer, protocol_name=fields.text("caller.authMethod"))
    return {
        "user": user,
        **_without_empty(app_name=fields.text("caller.client.name")),
        **({"session": session} if session else {}),
        **({"idp": provider} if provider else {}),
    }


def _to_call(fields: EntryFields, version: str) -> dict[str, Any]:
    call = fields.text("call.id")
    error = fields.text("outcome.errorType")
    return {
        "actor": _build_actor(fields, _build_user(fields)),
        "api": {
            "operation": "tools/call",
            "service": {"name": fields.text("target.catalogue") or PRODUCT},
            **({"request": {"uid": call}} if call else {}),
            **({"response": {"error": error}} if error else {}),
        },
        "resources": [_build_resource(fields)],
        "src_endpoint": _build_endpoint(fields),
    }


def _to_decision(fields: EntryFields, version: str) -> dict[str, Any]:
    approver = _build_approver(fields)
    return {
        "actor": _build_actor(fields, _build_user(fields)) if approver is None else {"user": approver},
        "user": _build_user(fields),
        "privileges": [f"call {fields.text('target.identity') or fields.text('target.tool')}".strip()],
        **({} if (count := fields.number("counted.number")) is None else {"count": count}),
    }


def _build_approver(fields: EntryFields) -> dict[str, Any] | None:
    approver = fields.last_approver
    return {"uid": approver, "name": approver} if approver else None


def _to_entity(fields: EntryFields, version: str) -> dict[str, Any]:
    names = ("object.name", "log.key.after", "log.opened.shard", "log.pruned.shard", "place.configRevision")
    name = next((found for each in names if (found := fields.text(each))), "unknown")
    kind = fields.text("object.kind") or fields.event.rpartition("-")[0] or "unknown"
    return {
        "actor": {"user": _build_user(fields)},
        "entity": {"name": name, "type": kind, "uid": name},
        **_without_empty(comment=fields.text("object.note")),
    }


def _to_lifecycle(fields: EntryFields, version: str) -> dict[str, Any]:
    return {"app": _build_product(version)}


def _build_resource(fields: EntryFields) -> dict[str, Any]:
    tool = fields.text("target.tool") or "unknown"
    return {"name": tool, "type": "tool", **_without_empty(uid=fields.text("target.identity"))}


def _build_endpoint(fields: EntryFields) -> dict[str, str]:
    address = fields.text("caller.client.address")
    try:
        return {"ip": str(ip_address(address))}
    except ValueError:
        return {"name": address or "unknown"}


def _without_empty(**texts: str) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text}


Format = Literal["jsonl", "cef", "ocsf"]


@dataclass(frozen=True, slots=True)
class ExportFilter:
    """Selects entries; a field that is `None` matches all. Times are microseconds, `until` is exclusive.

    `tool` is the name a tool was called by, or its identity in policies.
    """

    since: int | None = None
    until: int | None = None
    tenant: str | None = None
    tool: str | None = None

    @property
    def is_everything(self) -> bool:
        return self == EVERYTHING

    def has(self, body: Mapping[str, Any]) -> bool:
        if self.since is not None and body["at"] < self.since:
            return False
        if self.until is not None and body["at"] >= self.until:
            return False
        if self.tenant is not None and _get_part(body, "caller").get("tenant") != self.tenant:
            return False
        target = _get_part(body, "target")
        return self.tool is None or self.tool in (target.get("tool"), target.get("identity"))


EVERYTHING: Final = ExportFilter()


def export_entries(
    rows: Iterable[ChainRow], format: Format, *, version: str, selection: ExportFilter = EVERYTHING
) -> Iterator[bytes]:
    """Yield a line per entry. `version` is the gateway's. Raise `UnreadableLog` for a malformed entry."""
    if format == "jsonl" and selection.is_everything:
        yield from map(to_line, rows)  # unchanged bytes, even of damaged entries: verification reports them
        return
    line = _LINES[format]
    for row in rows:
        body = parse_body(row.body)
        if not isinstance(body.get("at"), int) or not isinstance(body.get("event"), str):
            raise UnreadableLog(
                f"entry {row.shard}:{row.seq} cannot be read", help="run gateway audit verify on the same log"
            )
        if selection.has(body):
            yield line(row, body, version)


def _get_part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = body.get(name)
    return part if isinstance(part, dict) else {}


def _json_line(row: ChainRow, body: Mapping[str, Any], version: str) -> bytes:
    return to_line(row)


_LINES: Final[Mapping[Format, Callable[[ChainRow, Mapping[str, Any], str], bytes]]] = {
    "jsonl": _json_line,
    "cef": cef_line,
    "ocsf": ocsf_line,
}
