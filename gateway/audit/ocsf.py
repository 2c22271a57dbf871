"""Entries as OCSF events, one JSON object per line.

Calls are API Activity (6003), decisions and approvals Authorize Session (3003), what operators do Entity Management
(3004), starts and stops Application Lifecycle (6002). The whole entry stands under `unmapped`, so nothing is lost.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

import orjson

from gateway.audit.chain import Row
from gateway.audit.fields import Fields

OCSF_VERSION: Final = "1.6.0"
MAPPING_VERSION: Final = "1"
"""Of this table. It grows when a field moves, so that receivers can tell."""

PRODUCT: Final = "agent-gateway"


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


def ocsf_line(row: Row, body: Mapping[str, Any], version: str) -> bytes:
    return orjson.dumps(ocsf_event(row, body, version)) + b"\n"


def ocsf_event(row: Row, body: Mapping[str, Any], version: str) -> dict[str, Any]:
    fields = Fields(body)
    activity = _ACTIVITIES.get(fields.event, _OTHER)
    own = {_CALLS: _call, _DECISIONS: _decision, _ENTITIES: _entity, _LIFECYCLE: _lifecycle}[activity.of]
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
        "metadata": _metadata(row, fields, version),
        **_status(fields),
        **_action(fields),
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


def _metadata(row: Row, fields: Fields, version: str) -> dict[str, Any]:
    return {
        "version": OCSF_VERSION,
        "product": _product(version),
        "uid": f"{row.shard}:{row.seq}",
        "sequence": row.seq,
        "event_code": fields.event,
        **_given(correlation_uid=fields.text("call.id"), tenant_uid=fields.text("caller.tenant")),
        **({"profiles": ["security_control"]} if fields.text("decision.effect") else {}),
    }


def _product(version: str) -> dict[str, str]:
    return {"name": PRODUCT, "vendor_name": PRODUCT, "version": version}


def _status(fields: Fields) -> dict[str, Any]:
    id, name = _STATES.get(fields.text("outcome.state"), (2, "Failure"))
    code = fields.text("outcome.errorType") or fields.text("decision.reason")
    return {"status_id": id, "status": name, **_given(status_code=code)}


def _action(fields: Fields) -> dict[str, Any]:
    effect = fields.text("decision.effect")
    if not effect:
        return {}
    id, name, disposition_id, disposition = _ACTIONS.get(effect, _HELD)
    return {"action_id": id, "action": name, "disposition_id": disposition_id, "disposition": disposition}


def _user(fields: Fields) -> dict[str, Any]:
    subject = fields.text("caller.subject") or "unknown"
    groups = [{"name": role} for role in fields.texts("caller.roles")]
    return {"uid": subject, "name": subject, **({"groups": groups} if groups else {})}


def _actor(fields: Fields, user: dict[str, Any]) -> dict[str, Any]:
    """Who acts; of callers also who vouches for them, by which credential, and the program they use."""
    issuer, token = fields.text("caller.issuer"), fields.text("caller.token")
    session = _given(issuer=issuer, credential_uid=token)
    provider = _given(name=issuer, protocol_name=fields.text("caller.authMethod"))
    return {
        "user": user,
        **_given(app_name=fields.text("caller.client.name")),
        **({"session": session} if session else {}),
        **({"idp": provider} if provider else {}),
    }


def _call(fields: Fields, version: str) -> dict[str, Any]:
    call = fields.text("call.id")
    error = fields.text("outcome.errorType")
    return {
        "actor": _actor(fields, _user(fields)),
        "api": {
            "operation": "tools/call",
            "service": {"name": fields.text("target.catalogue") or PRODUCT},
            **({"request": {"uid": call}} if call else {}),
            **({"response": {"error": error}} if error else {}),
        },
        "resources": [_resource(fields)],
        "src_endpoint": _endpoint(fields),
    }


def _decision(fields: Fields, version: str) -> dict[str, Any]:
    approver = _approver(fields)
    return {
        "actor": _actor(fields, _user(fields)) if approver is None else {"user": approver},
        "user": _user(fields),
        "privileges": [f"call {fields.text('target.identity') or fields.text('target.tool')}".strip()],
        **({} if (count := fields.number("counted.number")) is None else {"count": count}),
    }


def _approver(fields: Fields) -> dict[str, Any] | None:
    approver = fields.last_approver
    return {"uid": approver, "name": approver} if approver else None


def _entity(fields: Fields, version: str) -> dict[str, Any]:
    names = ("object.name", "log.key.after", "log.opened.shard", "log.pruned.shard", "place.configRevision")
    name = next((found for each in names if (found := fields.text(each))), "unknown")
    kind = fields.text("object.kind") or fields.event.rpartition("-")[0] or "unknown"
    return {
        "actor": {"user": _user(fields)},
        "entity": {"name": name, "type": kind, "uid": name},
        **_given(comment=fields.text("object.note")),
    }


def _lifecycle(fields: Fields, version: str) -> dict[str, Any]:
    return {"app": _product(version)}


def _resource(fields: Fields) -> dict[str, Any]:
    tool = fields.text("target.tool") or "unknown"
    return {"name": tool, "type": "tool", **_given(uid=fields.text("target.identity"))}


def _endpoint(fields: Fields) -> dict[str, str]:
    address = fields.text("caller.client.address")
    try:
        return {"ip": str(ip_address(address))}
    except ValueError:
        return {"name": address or "unknown"}


def _given(**texts: str) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text}
