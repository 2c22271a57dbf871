"""An access review as plain data for programs."""

from datetime import datetime
from typing import Any

from gateway.registries import Position
from gateway.review.access.access_review import AccessReview
from gateway.review.access.access_summary import list_unused_access
from gateway.review.access.attestation import AttestedAccess
from gateway.review.access.effective_access import AccessBlock, GateEffect, Right
from gateway.review.access.owners import find_caller_owners, find_object_owners
from gateway.review.access.usage import ToolUse, UsageTable
from gateway.review.grant_report import GrantAccess
from gateway.review.plan.policy_changes import PolicyRow


def access_data(review: AccessReview) -> dict[str, Any]:
    """Return the whole review. `use` is null if it is unknown; then nothing is listed as unused."""
    owners, teams = find_object_owners(review.snapshot), find_caller_owners(review.snapshot)
    return {
        "project": review.snapshot.name,
        "revision": review.snapshot.revision,
        "at": format_moment(review.at),
        "use": None if review.usage is None else _usage_data(review, review.usage),
        "callers": [
            {"name": name, "subject": each.subject, "roles": sorted(each.roles), "owner": teams.get(each.subject)}
            for name, each in sorted(review.callers.principals.items())
        ],
        "access": [block_data(review, block) for block in review.blocks],
        "owners": {object: owners[object] for object in sorted(owners)},
        "rows": {
            "unused": None if review.usage is None else _unused_row_data(review),
            "addNothing": [row_data(row) for row in review.redundant_rows],
        },
        "callersWithoutOwner": list(review.ownerless),
        "grants": None if review.grants is None else [_grant_data(each) for each in review.grants],
    }


def block_data(review: AccessReview, block: AccessBlock) -> dict[str, Any]:
    return {
        "catalogue": block.catalogue,
        "objects": list(block.objects),
        "tier": block.tier,
        "callers": sorted(review.callers.list_names(block.callers)),
        "rights": [_right_data(right) for right in block.rights],
        "gates": [_gate_data(gate) for gate in block.gates],
    }


def scope_data(entry: AttestedAccess) -> dict[str, Any]:
    """Return an entry of an attestation as its document has it."""
    found: dict[str, Any] = {
        "catalogue": entry.catalogue,
        "callers": list(entry.callers),
        "objects": list(entry.objects),
        "may": list(entry.actions),
    }
    return {**found, "gates": list(entry.gates)} if entry.gates else found


def row_data(row: PolicyRow) -> dict[str, Any]:
    return {
        "row": format_place(row.position),
        "subject": row.subject,
        "catalogue": row.catalogue,
        "object": row.object,
        "actions": sorted(row.actions),
        "upTo": row.tier,
        "effect": row.effect,
    }


def format_place(position: Position) -> str:
    return f"{position.file}:{position.line}"


def format_moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")


def _usage_data(review: AccessReview, usage: UsageTable) -> dict[str, Any]:
    return {
        "since": format_moment(usage.since),
        "oldestRecord": format_moment(usage.oldest),
        "coversPeriod": usage.covers_period,
        "calls": [
            {"caller": name, "catalogue": catalogue, "tool": tool, **_use_data(use)}
            for (name, catalogue, tool), use in sorted(review.uses.by_subject.items(), key=lambda each: each[0])
        ],
        "unused": [
            {"catalogue": each.catalogue, "callers": sorted(each.callers), "objects": list(each.objects)}
            for each in list_unused_access(review)
        ],
    }


def _use_data(use: ToolUse) -> dict[str, Any]:
    return {"count": use.count, "last": format_moment(use.last)}


def _right_data(right: Right) -> dict[str, Any]:
    row = right.row
    if row is None:
        return {"action": right.action, "row": None, "subject": None, "upTo": None}
    return {"action": right.action, "row": format_place(row.position), "subject": row.subject, "upTo": row.tier}


def _gate_data(gate: GateEffect) -> dict[str, Any]:
    place = format_place(gate.position)
    return {
        "rule": gate.rule,
        "may": gate.decision,
        "always": gate.is_certain,
        "isLimit": gate.is_limit,
        "position": place,
    }


def _grant_data(found: GrantAccess) -> dict[str, Any]:
    grant = found.grant
    return {
        "id": grant.id,
        "subject": grant.subject,
        "role": grant.role,
        "policy": grant.policy,
        "until": format_moment(grant.until),
        "inForce": found.is_in_force,
        "adds": [
            {
                "catalogue": each.catalogue,
                "action": each.action,
                "tool": each.tool,
                "row": None if each.row is None else format_place(each.row),
            }
            for each in found.adds
        ],
    }


def _unused_row_data(review: AccessReview) -> list[dict[str, Any]]:
    unused = ((each.row, each.use) for each in review.row_use if each.is_unused)
    return [{**row_data(row), "last": None if use is None else format_moment(use.last)} for row, use in unused]
