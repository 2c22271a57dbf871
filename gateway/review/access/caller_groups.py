"""Callers as sets of bits. Callers that hold the same names of rows and audiences form one group with one bit."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gateway.model import Principal
from gateway.policy import Access
from gateway.review.access.usage import UseCount
from gateway.review.plan.access_changes import Callers, Mask, list_callers
from gateway.review.plan.policy_changes import GroupingRow, PolicyRow

NO_CALLERS: Final[Mask] = 0


class CallerGroups:
    """All callers of a review, by name and by group."""

    def __init__(self, access: Access, rows: Sequence[PolicyRow | GroupingRow], callers: Callers) -> None:
        self.principals = callers
        self._members: list[list[str]] = []
        self._masks: dict[str, Mask] = {}
        self._holders: dict[str, Mask] = {}
        audiences = (each.audience for each in access.snapshot.catalogues.values())
        deciding = frozenset(row.subject for row in rows if isinstance(row, PolicyRow)).union(*audiences)
        numbers: dict[frozenset[str], int] = {}
        for name, principal in sorted(callers.items()):
            held = access.roles_of(principal) & deciding
            if held not in numbers:
                numbers[held] = len(self._members)
                self._members.append([])
                for each in held:
                    self._holders[each] = self._holders.get(each, NO_CALLERS) | 1 << numbers[held]
            self._members[numbers[held]].append(name)
            self._masks[name] = 1 << numbers[held]

    def find_holders(self, names: Iterable[str]) -> Mask:
        """Return the callers that hold one of the names."""
        mask = NO_CALLERS
        for name in names:
            mask |= self._holders.get(name, NO_CALLERS)
        return mask

    def find_mask(self, name: str) -> Mask:
        """Return the group of a caller."""
        return self._masks.get(name, NO_CALLERS)

    def list_names(self, mask: Mask) -> Iterator[str]:
        """Yield the names of the callers, group by group."""
        while mask:
            lowest = mask & -mask
            yield from self._members[lowest.bit_length() - 1]
            mask ^= lowest

    def pick_one(self, mask: Mask) -> Principal:
        """Return one of the callers. What holds for it holds for all that a partition does not distinguish."""
        return self.principals[self._members[(mask & -mask).bit_length() - 1][0]]

    def split(self, names: Iterable[str], *, within: Iterable[Mask]) -> list[Mask]:
        """Split sets of callers into parts that hold the same of the names."""
        parts = list(within)
        for holders in {self._holders.get(name, NO_CALLERS) for name in names} - {NO_CALLERS}:
            parts = [half for part in parts for half in (part & holders, part & ~holders) if half]
        return parts


def list_review_callers(
    access: Access, rows: Sequence[PolicyRow | GroupingRow], uses: Iterable[UseCount] = ()
) -> Callers:
    """Return the callers of policies and documents, and those of the records.

    A recorded caller has the roles of its newest use. It is listed besides a known caller of the same subject only if
    these differ, and not at all if a provider's document names the subject, and so decides its roles.
    """
    known = dict(list_callers(access.snapshot, rows))
    newest: dict[str, UseCount] = {}
    for use in uses:
        subject = use.principal.subject
        if subject not in access.snapshot.subjects and (subject not in newest or newest[subject].last < use.last):
            newest[subject] = use
    for subject, use in sorted(newest.items()):
        principal = Principal(subject, use.principal.roles)
        if subject not in known:
            known[subject] = principal
        elif access.roles_of(principal) != access.roles_of(known[subject]):
            known[f"{subject} as {', '.join(sorted(principal.roles)) or 'nothing else'}"] = principal
    return known
