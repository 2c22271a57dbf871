"""Looking into bodies that anybody may have written: what is not there, or is of another type, is empty."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

SEVERITIES: Final[Mapping[str, int]] = {
    "call-unknown": 3,
    "approval-voided": 3,
    "quarantine-added": 4,
    "quarantine-lifted": 3,
    "definition-changed": 4,
    "definition-restored": 3,
    "definition-accepted": 3,
    "token-revoked": 3,
    "token-restored": 3,
    "key-rotated": 3,
    "log-pruned": 3,
}
"""From 1, informational, to 5, critical, as OCSF counts; what is not listed follows its decision."""

_names: Final = cache(lambda path: tuple(path.split(".")))  # paths are written in our own code, so they are few
_OF_EFFECTS: Final = {"allow": 1, "hold": 2, "deny": 3}
_GRAVE: Final = frozenset(
    {"approval-mismatch", "quarantined", "definition-changed", "config-expired", "check-failed", "audit-unavailable"}
)


class Fields:
    """Texts and numbers of a body by path: `caller.subject`."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def text(self, path: str) -> str:
        found = self._at(path)
        return found if isinstance(found, str) else ""

    def number(self, path: str) -> int | None:
        found = self._at(path)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def texts(self, path: str) -> list[str]:
        found = self._at(path)
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    @property
    def event(self) -> str:
        return self.text("event")

    @property
    def last_approver(self) -> str:
        entries = self._at("gate.entries")
        last = entries[-1] if isinstance(entries, list) and entries else None
        return Fields(last).text("approver") if isinstance(last, dict) else ""

    @property
    def severity(self) -> int:
        if self.text("decision.reason") in _GRAVE:
            return 4
        listed = SEVERITIES.get(self.event)
        return _OF_EFFECTS.get(self.text("decision.effect"), 1) if listed is None else listed

    def _at(self, path: str) -> Any:
        found: Any = self._body
        for name in _names(path):
            found = found.get(name) if isinstance(found, dict) else None
        return found
