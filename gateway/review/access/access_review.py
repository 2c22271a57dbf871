"""The access review of a project: all access, its use, idle rows, and callers without an owner."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gateway.policy import Access, PolicySet
from gateway.registries import Snapshot
from gateway.review.access.attestation import AttestedAccess, select_scope
from gateway.review.access.caller_groups import CallerGroups, list_review_callers
from gateway.review.access.effective_access import AccessBlock, enumerate_access
from gateway.review.access.idle_rows import RowUse, find_redundant_rows, measure_row_use
from gateway.review.access.owners import find_ownerless_callers
from gateway.review.access.row_cover import RowCover
from gateway.review.access.usage import UsageTable, UseIndex, index_uses
from gateway.review.plan.access_changes import Progress
from gateway.review.plan.policy_changes import GroupingRow, PolicyRow


@dataclass(frozen=True, slots=True)
class AccessReview:
    """Who has what, and who uses it. Without `usage`, use is unknown: nothing counts as unused."""

    snapshot: Snapshot
    at: datetime
    callers: CallerGroups
    blocks: tuple[AccessBlock, ...]
    redundant_rows: tuple[PolicyRow, ...]
    """Rows that add nothing; together they can be removed."""
    ownerless: tuple[str, ...]
    """Agents and services without an owner."""
    usage: UsageTable | None = None
    uses: UseIndex = field(default_factory=UseIndex)
    row_use: tuple[RowUse, ...] = ()
    """Rows that allow something, with their use; empty without `usage`."""

    @property
    def unused_rows(self) -> list[PolicyRow]:
        """Rows that allow something and were not used within the period."""
        return [each.row for each in self.row_use if each.is_unused]


def review_access(
    access: Access,
    rows: Sequence[PolicyRow | GroupingRow],
    *,
    at: datetime,
    usage: UsageTable | None = None,
    progress: Progress | None = None,
) -> AccessReview:
    """Review the access that rows in force grant. `progress` is called during the enumeration."""
    cover = RowCover(access.snapshot, rows)
    uses = () if usage is None else usage.uses
    callers = CallerGroups(access, rows, list_review_callers(access, rows, uses))
    return AccessReview(
        access.snapshot,
        at,
        callers,
        tuple(enumerate_access(access, cover, callers, at=at, progress=progress)),
        tuple(find_redundant_rows(access, cover)),
        tuple(find_ownerless_callers(access.snapshot, callers.principals.values())),
        usage,
        index_uses(uses),
        () if usage is None else tuple(measure_row_use(access, cover, usage)),
    )


def list_access_scope(
    access: Access, rows: Sequence[PolicyRow | GroupingRow], *, at: datetime, owner: str
) -> tuple[AttestedAccess, ...]:
    """Return the access that an owner attests, from policies and documents only: records add nothing to it."""
    callers = CallerGroups(access, rows, list_review_callers(access, rows))
    blocks = enumerate_access(access, RowCover(access.snapshot, rows), callers, at=at)
    return select_scope(access.snapshot, blocks, callers, owner=owner)


def list_policy_rows(policies: PolicySet) -> list[PolicyRow | GroupingRow]:
    """Return the rows of policy files as a review reads them."""
    found: list[PolicyRow | GroupingRow] = []
    for row in policies.permissions:
        subject, catalogue, object, actions, tier, effect = row.texts
        found.append(PolicyRow(subject, catalogue, object, frozenset(actions.split("|")), tier, effect, row.position))
    found += [GroupingRow("g", each.member.text, each.group.text, each.member.position) for each in policies.members]
    found += [GroupingRow("g2", each.member.text, each.group.text, each.member.position) for each in policies.objects]
    return found
