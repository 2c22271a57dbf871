"""The authoriser of policies with rows that end: one authoriser for each period between two ends.

The clock is read for every decision, so a row grants nothing from the moment of its end on, and no timer is needed. The
cache of decisions belongs to the authoriser of a period and goes with it.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from threading import Lock
from typing import Final

from gateway.policy.authoriser import AccessDecision, AccessRequest, Authoriser
from gateway.policy.casbin.enforcer import CasbinAuthoriser
from gateway.policy.casbin.lint import KnownNames
from gateway.policy.casbin.policy_files import PolicySet
from gateway.policy.forward_clock import forward_now

_MOST_BUILT: Final = 8
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)

_log: Final = logging.getLogger(__name__)


def build_authoriser(
    policies: PolicySet,
    *,
    ranks: Mapping[str, int],
    known: KnownNames | None = None,
    clock: Callable[[], datetime] = forward_now,
) -> Authoriser:
    """Return an authoriser that decides on rows in force only. Raises `ProgramError` for rows with errors."""
    if not policies.ending:
        return CasbinAuthoriser(policies, ranks=ranks, known=known)
    return PeriodAuthoriser(policies, ranks=ranks, known=known, clock=clock)


class PeriodAuthoriser:
    """Moves from one period to the next, and never back: a clock that is set back revives no row."""

    def __init__(
        self,
        policies: PolicySet,
        *,
        ranks: Mapping[str, int],
        known: KnownNames | None = None,
        clock: Callable[[], datetime] = forward_now,
    ) -> None:
        self._policies = policies
        self._ranks = ranks
        self._known = known
        self._clock = clock
        self._ends = sorted({row.end.until for row in policies.ending if row.end is not None})
        self._built: dict[int, CasbinAuthoriser] = {}
        self._lock = Lock()
        self._number = bisect_right(self._ends, clock())
        self._current = (self._of_period(self._number), self._end_of(self._number))

    def roles_of(self, names: frozenset[str]) -> frozenset[str]:
        return self._find_current().roles_of(names)

    def decide(self, request: AccessRequest) -> AccessDecision:
        try:
            current = self._find_current()
        except Exception as error:  # fail closed
            _log.exception("the rows in force cannot be determined")
            return AccessDecision(False, f"authorisation failed ({type(error).__name__})", is_unanswered=True)
        return current.decide(request)

    def at(self, moment: datetime) -> Authoriser:
        """Return the authoriser of the rows that are in force at a moment, in the past or the future."""
        with self._lock:
            return self._of_period(bisect_right(self._ends, moment))

    def _find_current(self) -> CasbinAuthoriser:
        authoriser, until = self._current
        if until is None or self._clock() < until:
            return authoriser
        with self._lock:
            number = max(self._number, bisect_right(self._ends, self._clock()))
            if number > self._number:
                self._log_ended(self._number, number)
                self._current, self._number = (self._of_period(number), self._end_of(number)), number
            return self._current[0]

    def _end_of(self, number: int) -> datetime | None:
        return self._ends[number] if number < len(self._ends) else None

    def _of_period(self, number: int) -> CasbinAuthoriser:
        """Return the authoriser of a period: `number` ends are over."""
        found = self._built.get(number)
        if found is None:
            in_force = self._policies.in_force(self._ends[number - 1] if number else _BEGINNING)
            found = CasbinAuthoriser(in_force, ranks=self._ranks, known=self._known)
            if len(self._built) >= _MOST_BUILT:
                self._built.clear()
            self._built[number] = found
        return found

    def _log_ended(self, before: int, after: int) -> None:
        over = self._ends[before:after]
        for row in self._policies.ending:
            if row.end is not None and row.end.until in over:
                place = f"{row.position.file}:{row.position.line}"
                _log.warning("the policy row at %s has ended: it was in force %s", place, row.end.describe)
