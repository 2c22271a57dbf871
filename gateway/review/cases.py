"""Which policy tests differ: an expectation that goes is a change, though nothing that is served depends on it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gateway.governance.cases import PolicyCase
from gateway.governance.diagnostics import Position
from gateway.review.changes import Change
from gateway.review.risk import Finding


@dataclass(frozen=True, slots=True)
class CaseChange:
    change: Change
    suite: str
    name: str
    position: Position

    @property
    def about(self) -> str:
        return f"PolicyTest {self.suite}: {self.name}"


def case_changes(before: Iterable[PolicyCase], after: Iterable[PolicyCase]) -> tuple[CaseChange, ...]:
    """By suite and name; where a case stands makes no difference."""
    old, new = _by_name(before), _by_name(after)
    found = []
    for key in sorted({*old, *new}):
        one, other = old.get(key, []), new.get(key, [])
        if list(map(_meaning, one)) != list(map(_meaning, other)):
            change: Change = "changed" if one and other else "added" if other else "removed"
            found.append(CaseChange(change, *key, (other or one)[0].position))
    return tuple(found)


def case_findings(changes: Sequence[CaseChange]) -> Iterator[Finding]:
    for each in changes:
        if each.change != "added":
            yield Finding(f"test-{each.change}", each.about, position=each.position)


def _by_name(cases: Iterable[PolicyCase]) -> dict[tuple[str, str], list[PolicyCase]]:
    found: dict[tuple[str, str], list[PolicyCase]] = {}
    for case in cases:
        found.setdefault((case.suite, case.name), []).append(case)
    return found


def _meaning(case: PolicyCase) -> tuple[object, ...]:
    asked = (case.principal, case.catalogue, case.at, case.tool, case.args, case.saw, case.read, case.calls)
    return (*asked, case.expected, case.because)
