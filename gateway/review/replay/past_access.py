"""The access that a policy gave at a moment of the past: with the rows that were in force, and the grants.

Rows end by the dates in the policy. Grants are those of the store, under the grant policies that are replayed.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from gateway.model import from_microseconds
from gateway.policy import Access, Grant, GrantedRoles, GrantLedger

_BEGINNING = datetime.min.replace(tzinfo=UTC)


class PastAccess:
    """Asked for moments in any order; a cache keeps one access for each period between two ends of rows."""

    def __init__(self, access: Access, grants: Iterable[Grant]) -> None:
        self._plain = access.without_grants()
        self._has_ends = self._plain.at(_BEGINNING) is not self._plain
        self._policies = access.snapshot.grants
        self._ledger = GrantLedger.of(map(_approved_until_its_end, grants)) if self._policies else GrantLedger()
        self._moment = _BEGINNING
        self._of_periods: dict[int, Access] = {}
        self.known_grants = frozenset(each.id for each in self._ledger.grants)

    def at(self, moment: int) -> Access:
        """Return the access at a moment. Its grants are those of the moment that was asked for last."""
        if not self._has_ends and not self._ledger.grants:
            return self._plain
        self._moment = from_microseconds(moment)
        timed = self._plain.at(self._moment)
        found = self._of_periods.get(id(timed.authoriser))
        if found is None:
            found = self._of_periods[id(timed.authoriser)] = self._add_grants(timed)
        return found

    def _add_grants(self, timed: Access) -> Access:
        if not self._ledger.grants:
            return timed
        roles_of = timed.authoriser.roles_of
        return timed.with_grants(GrantedRoles(self._policies, self._ledger, roles_of, clock=lambda: self._moment).find)


def _approved_until_its_end(grant: Grant) -> Grant:
    """Return a grant that was revoked as one that ended then: before that, it was in force."""
    if grant.state != "revoked" or grant.since is None:
        return grant
    return replace(grant, state="approved", until=grant.ends_at)
