"""Finds policy rows that were not used within a period, and rows that add nothing.

A row adds nothing if every decision stays the same without it, for callers with any names: what it allows is allowed or
denied by other rows that every holder of its subject holds, too; what it denies is denied by such rows. All rows that
are found can be removed together. A row about nothing that is declared adds nothing either.

A row was used by a recorded call that it could have decided, whether or not another row decided it, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.model import CONFIG_OBJECT
from gateway.policy import Access, PermissionCheck
from gateway.registries import Snapshot
from gateway.review.access.row_cover import RowCover, RowNumber
from gateway.review.access.usage import NEVER, ToolUse, UsageTable
from gateway.review.plan.policy_changes import PolicyRow

_ACTION_OF_USE: Final = {"call": "invoke", "approve": "approve"}
RECORDED_ACTIONS: Final = frozenset(_ACTION_OF_USE.values())
"""Actions whose use is in the records of calls and approvals."""


@dataclass(frozen=True, slots=True)
class RowUse:
    """An allow row and the recorded use of it; `None` if records do not show the use of its actions."""

    row: PolicyRow
    use: ToolUse | None

    @property
    def is_unused(self) -> bool:
        """Whether it was not used within the period. False if that is not known."""
        return self.use is not None and not self.use.count


def measure_row_use(access: Access, cover: RowCover, usage: UsageTable) -> list[RowUse]:
    """Return each row that allows something, with its use."""
    used: dict[RowNumber, ToolUse] = {}
    ranks, tools = access.snapshot.ranks, access.snapshot.tools
    for use in usage.uses:
        tool, action = tools.get(use.tool), _ACTION_OF_USE[use.kind]
        if tool is None:
            continue
        names = access.roles_of(use.principal)
        objects = [tool.object]
        if use.kind == "approve" and tool.artifact in access.snapshot.artifacts:
            objects.append(f"class:{tool.artifact}")
        for number in {number for each in objects for number in cover.find(use.catalogue, each)}:
            row = cover.rows[number]
            if row.subject in names and action in row.actions and tool.trust.tier.rank <= ranks[row.tier]:
                used[number] = used.get(number, NEVER) + ToolUse(use.count, use.last)
    allows = ((number, row) for number, row in enumerate(cover.rows) if row.effect == "allow")
    return [RowUse(row, used.get(number, NEVER) if _is_recorded(row) else None) for number, row in allows]


def _is_recorded(row: PolicyRow) -> bool:
    return not row.actions.isdisjoint(RECORDED_ACTIONS)


class _Request(NamedTuple):
    """Something that the policy can be asked, apart from the caller and the action: by the rows that cover it."""

    rows: tuple[RowNumber, ...]
    tier: str


def find_redundant_rows(access: Access, cover: RowCover) -> list[PolicyRow]:
    """Return the rows that add nothing, in their order; together they can be removed."""
    requests = sorted({each for each in _list_requests(access.snapshot, cover) if each.rows})
    concerned: dict[RowNumber, list[_Request]] = {}
    for request in requests:
        for number in request.rows:
            concerned.setdefault(number, []).append(request)
    checker = _RedundancyCheck(access, cover)
    for number in reversed(range(len(cover.rows))):
        if all(checker.is_covered(number, request) for request in concerned.get(number, ())):
            checker.removed.add(number)
    return [cover.rows[number] for number in sorted(checker.removed)]


class _RedundancyCheck:
    def __init__(self, access: Access, cover: RowCover) -> None:
        self._access = access
        self._rows: Sequence[PolicyRow] = cover.rows
        self._ranks = access.snapshot.ranks
        self._by_subject: dict[_Request, Mapping[str, Sequence[RowNumber]]] = {}
        self._held: dict[str, frozenset[str]] = {}
        self.removed: set[RowNumber] = set()

    def is_covered(self, number: RowNumber, request: _Request) -> bool:
        """Whether other rows decide the request for every holder of the row's subject, for each of its actions."""
        row = self._rows[number]
        if not self._is_within(request.tier, row):
            return True
        others = [self._rows[each] for each in self._find_held(row.subject, request) if each != number]
        deciding = [each for each in others if self._is_within(request.tier, each) and self._outweighs(each, row)]
        return all(any(action in other.actions for other in deciding) for action in row.actions)

    def _find_held(self, subject: str, request: _Request) -> Iterator[RowNumber]:
        if request not in self._by_subject:
            grouped: dict[str, list[RowNumber]] = {}
            for number in request.rows:
                grouped.setdefault(self._rows[number].subject, []).append(number)
            self._by_subject[request] = grouped
        held = self._held.get(subject)
        if held is None:
            held = self._held[subject] = self._access.authoriser.roles_of(frozenset({subject}))
        grouped_rows = self._by_subject[request]
        for name in held:
            yield from (number for number in grouped_rows.get(name, ()) if number not in self.removed)

    def _is_within(self, tier: str, row: PolicyRow) -> bool:
        return self._ranks[tier] <= self._ranks[row.tier]

    @staticmethod
    def _outweighs(other: PolicyRow, row: PolicyRow) -> bool:
        """Whether the other row decides a request that both match, whatever the row says."""
        return other.effect in ("deny", row.effect)


def _list_requests(snapshot: Snapshot, cover: RowCover) -> Iterator[_Request]:
    """Yield everything that the policy can be asked about in some catalogue."""
    classes = {f"class:{name}" for name in snapshot.artifacts}
    queries = {f"tool:{name}" for name in snapshot.query_names}
    permissions = {rule.check.object for rule in snapshot.gates.values() if isinstance(rule.check, PermissionCheck)}
    shared = sorted({*classes, *queries, *permissions, CONFIG_OBJECT})
    tiers = sorted(snapshot.tiers)
    for catalogue in snapshot.catalogues.values():
        for identity in set(catalogue.tools.values()):
            if (tool := snapshot.tools.get(identity)) is not None:
                yield _Request(cover.find(catalogue.name, tool.object), tool.trust.tier.name)
        for object in {*catalogue.prompts.values(), *catalogue.resources}:
            yield _Request(cover.find(catalogue.name, object), snapshot.offers[object].trust.tier.name)
        for object in shared:
            covering = cover.find(catalogue.name, object)
            yield from (_Request(covering, tier) for tier in tiers)
