"""A plan as plain data, for programs.

    {"before": revision, "after": revision, "environment": name or null,
     "documents": [{"change": "added|removed|changed", "kind", "name", "position",
                    "fields": [{"path", "before", "after", "added": [...], "removed": [...]}]}],
     "policies":  [{"change", "position", "text", "before": row or null, "after": row or null}],
     "tests":     {"passed", "failed"} or null,
     "cases":     [{"change", "suite", "name", "position"}],
     "definitions": [{"upstream", "kind", "name", "what", "grade", "words", "path", "before", "after"}],
     "collisions": [{"catalogue", "name", "existing", "incoming", "outcome": "throw|replace|keep",
                     "kind": "tool|prompt|resource"}],
     "access":    [{"caller", "catalogue", "tool", "before": "none|sees|calls|gets|reads", "after"}],
     "findings":  [{"code", "weight": "low|medium|high", "about", "path", "words"}],
     "waivers":   [{"catalogue", "flags", "until", "by", "because"}],
     "risk":      "low|medium|high" or null, "accepted": true or false}

Prompts and groups of resources are in `tool`, with their name in policies: `prompt:wiki.review`.
Values are as written in the files; if one side does not have a field, its `before` or `after` is left out.
"""

from typing import Any

from gateway.registries import Position
from gateway.review.plan.builder import Plan
from gateway.review.plan.document_changes import AbsentValue, DocumentChange, FieldChange
from gateway.review.plan.policy_changes import GroupingRow, PolicyRow, RowChange
from gateway.review.plan.risk import Weight, is_accepted


def plan_data(plan: Plan, *, accepted: Weight | None = None) -> dict[str, Any]:
    return {
        "before": plan.before,
        "after": plan.after,
        "environment": plan.environment,
        "documents": [_document(each) for each in plan.documents],
        "policies": [_row_change(each) for each in plan.policies],
        "cases": [
            {"change": each.change, "suite": each.suite, "name": each.name, "position": _place(each.position)}
            for each in plan.cases
        ],
        "definitions": [each.to_dict() for each in plan.definitions],
        "collisions": [
            {
                "catalogue": each.catalogue,
                "name": each.name,
                "existing": each.existing,
                "incoming": each.incoming,
                "outcome": each.outcome,
                "kind": each.kind,
            }
            for each in plan.collisions
        ],
        "access": [
            {
                "caller": each.caller,
                "catalogue": each.catalogue,
                "tool": each.tool,
                "before": each.before,
                "after": each.after,
            }
            for each in plan.access
        ],
        "findings": [
            {
                "code": each.code,
                "weight": each.weight,
                "about": each.about,
                "path": each.path,
                "words": each.words,
            }
            for each in plan.findings
        ],
        "waivers": [
            {
                "catalogue": each.catalogue,
                "flags": list(each.flags),
                "until": each.until.isoformat(),
                "by": each.by,
                "because": each.because,
            }
            for each in plan.waivers
        ],
        "tests": {"passed": plan.tests.passed, "failed": plan.tests.failed} if plan.tests else None,
        "risk": plan.risk,
        "accepted": is_accepted(plan.risk, accepted),
    }


def _document(change: DocumentChange) -> dict[str, Any]:
    return {
        "change": change.change,
        "kind": change.kind,
        "name": change.name,
        "position": _place(change.position),
        "fields": [_field(each) for each in change.fields],
    }


def _field(field: FieldChange) -> dict[str, Any]:
    sides = {"before": field.before, "after": field.after}
    values = {side: value for side, value in sides.items() if not isinstance(value, AbsentValue)}
    return {"path": field.path, **values, "added": list(field.added), "removed": list(field.removed)}


def _row_change(change: RowChange) -> dict[str, Any]:
    return {
        "change": change.change,
        "position": _place(change.position),
        "text": str(change),
        "before": _row(change.before),
        "after": _row(change.after),
    }


def _row(row: PolicyRow | GroupingRow | None) -> list[str] | None:
    match row:
        case PolicyRow():
            return ["p", *row.target, "|".join(sorted(row.actions)), row.tier, row.effect]
        case GroupingRow():
            return [row.section, row.member, row.group]
    return None


def _place(position: Position) -> str:
    return f"{position.file}:{position.line}"
