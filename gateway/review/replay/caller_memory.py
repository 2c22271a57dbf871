"""What a replay remembers of callers: which tools made their results, and which flags they have seen.

Both are bounded. What is forgotten is unknown, never absent.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Final

from gateway.model import Principal, candidate_call_ids

_MOST_RESULTS: Final = 200_000
_MOST_CALLERS: Final = 100_000
_NOTHING_SEEN: Final[Mapping[str, int]] = {}


class CallerMemory:
    def __init__(self) -> None:
        self._results: OrderedDict[int, tuple[str, str | None]] = OrderedDict()
        self._sightings: OrderedDict[tuple[str | None, str], dict[str, int]] = OrderedDict()
        self.has_forgotten = False
        """Whether the sightings of some caller were dropped."""

    def add_result(self, principal: Principal, id: str, tool: str, artifact: str) -> None:
        """Remember which tool made the result of a call, and its class."""
        self._results[_key(principal, id)] = (tool, artifact)
        if len(self._results) > _MOST_RESULTS:
            self._results.popitem(last=False)

    def find_result(self, principal: Principal, id: str) -> tuple[str, str | None] | None:
        """Return the tool that made a result, and its class; `id` may be that of a piece."""
        known = (self._results.get(_key(principal, each)) for each in candidate_call_ids(id))
        return next((each for each in known if each is not None), None)

    def add_sightings(self, principal: Principal, flags: Collection[str], at: int) -> None:
        if not flags:
            return
        key = (principal.tenant, principal.subject)
        seen = self._sightings.setdefault(key, {})
        self._sightings.move_to_end(key)
        seen.update(dict.fromkeys(flags, at))
        if len(self._sightings) > _MOST_CALLERS:
            self._sightings.popitem(last=False)
            self.has_forgotten = True

    def sightings_of(self, principal: Principal) -> Mapping[str, int]:
        """Return when the caller last saw each flag, in microseconds."""
        return self._sightings.get((principal.tenant, principal.subject), _NOTHING_SEEN)


def _key(principal: Principal, id: str) -> int:
    return hash((principal.tenant, principal.subject, id))
