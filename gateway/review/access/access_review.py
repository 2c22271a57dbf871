"""The access review of a project: all access, its use, idle rows, and callers without an owner."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from gateway.policy import Access, PolicySet
from gateway.registries import Snapshot
from gateway.review.access.attestation import AttestedAccess, select_scope
from gateway.review.access.caller_groups import CallerGroups, list_review_callers
from gateway.review.access.effective_access import AccessBlock, enumerate_access
from gateway.review.access.idle_rows import RowUse, find_redundant_rows, measure_row_use
from gateway.review.access.owners import find_ownerless_callers
from gateway.review.access.row_cover import RowCover
from gateway.review.access.usage import UsageTable, UseIndex, index_uses
from gateway.review.grant_report import GrantAccess
from gateway.review.plan.access_changes import Callers, Progress
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
    grants: tuple[GrantAccess, ...] | None = None
    """Running grants and what each adds to the access of rows; `None` if they are unknown."""

    @property
    def unused_rows(self) -> list[PolicyRow]:
        """Rows that allow something and were not used within the period."""
        return [each.row for each in self.row_use if each.is_unused]

    def only_about(self, object: str) -> "AccessReview":
        """Return the access to one object, by its name in policies."""
        blocks = (replace(each, objects=(object,)) for each in self.blocks if object in each.objects)
        return replace(self, blocks=tuple(blocks))


def review_access(
    access: Access,
    rows: Sequence[PolicyRow | GroupingRow],
    *,
    at: datetime,
    usage: UsageTable | None = None,
    callers: Callers | None = None,
    grants: Sequence[GrantAccess] | None = None,
    progress: Progress | None = None,
) -> AccessReview:
    """Review the access that rows in force grant, of all callers or of those given. `grants` are listed beside it.

    `progress` is called during the enumeration.
    """
    access = access.at(at)
    cover = RowCover(access.snapshot, rows)
    uses = () if usage is None else usage.uses
    chosen = list_review_callers(access, rows, uses) if callers is None else callers
    groups = CallerGroups(access, rows, chosen)
    return AccessReview(
        access.snapshot,
        at,
        groups,
        tuple(enumerate_access(access, cover, groups, at=at, progress=progress)),
        tuple(find_redundant_rows(access, cover)),
        tuple(find_ownerless_callers(access.snapshot, chosen.values())),
        usage,
        index_uses(uses, roles_of=access.roles_of),
        () if usage is None else tuple(measure_row_use(access, cover, usage)),
        None if grants is None else _of_callers(grants, chosen),
    )


def _of_callers(grants: Sequence[GrantAccess], callers: Callers) -> tuple[GrantAccess, ...]:
    subjects = {each.subject for each in callers.values()}
    return tuple(each for each in grants if each.grant.subject in subjects)


class AccessScopes:
    """The access that each owner attests, by policies and documents only: records add nothing to it."""

    def __init__(self, access: Access, rows: Sequence[PolicyRow | GroupingRow], *, at: datetime) -> None:
        self._access = access.at(at)
        self._rows = rows
        self._at = at

    def find(self, owner: str) -> tuple[AttestedAccess, ...]:
        """Return the access to what the owner owns, and of the callers that it owns, in normal form."""
        return select_scope(self._access.snapshot, self._blocks, self.callers, owner=owner)

    @cached_property
    def callers(self) -> CallerGroups:
        return CallerGroups(self._access, self._rows, list_review_callers(self._access, self._rows))

    @cached_property
    def _blocks(self) -> Sequence[AccessBlock]:
        cover = RowCover(self._access.snapshot, self._rows)
        return enumerate_access(self._access, cover, self.callers, at=self._at)


def list_policy_rows(policies: PolicySet, at: datetime) -> list[PolicyRow | GroupingRow]:
    """Return the rows of policy files that are in force at a moment, as a review reads them."""
    policies = policies.in_force(at)
    found: list[PolicyRow | GroupingRow] = []
    for row in policies.permissions:
        subject, catalogue, object, actions, tier, effect = row.texts
        found.append(PolicyRow(subject, catalogue, object, frozenset(actions.split("|")), tier, effect, row.position))
    found += [GroupingRow("g", each.member.text, each.group.text, each.member.position) for each in policies.members]
    found += [GroupingRow("g2", each.member.text, each.group.text, each.member.position) for each in policies.objects]
    return found
