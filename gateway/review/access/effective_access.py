"""Lists the access of every caller to every tool, prompt and group of resources, by the functions that decide calls.

The same question is asked once: tools of a catalogue that the same rows cover, of the same tier and under the same
rules, have the same answer, and so have callers that hold the same subjects of these rows. An `AccessBlock` is such an
answer. Every other pair of caller and object has no access.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from gateway.model import CONFIG_OBJECT, Principal
from gateway.policy import (
    Access,
    AccessDecision,
    AccessRequest,
    BudgetCheck,
    FlowCheck,
    GateRule,
    LoopCheck,
    PermissionCheck,
    QuotaCheck,
    RateCheck,
)
from gateway.registries import CONTENT, Catalogue, DeclaredDefinition, DeclaredTool, Position
from gateway.review.access.caller_groups import CallerGroups
from gateway.review.access.row_cover import RowCover, RowNumber
from gateway.review.access_report import permission_lookup, worst_decision
from gateway.review.plan.access_changes import Mask, Progress
from gateway.review.plan.policy_changes import PolicyRow

SEE: Final = "see"
CALL: Final = "call"
READ: Final = "read"
APPROVE: Final = "approve"
ADMINISTER: Final = "administer"
OBSERVE: Final = "observe"
ACTIONS: Final = (SEE, CALL, READ, APPROVE, ADMINISTER, OBSERVE)
"""What a caller can do. `read:NAME` stands for a query tool, if a caller may use only some of those of a tool."""

EVERYWHERE: Final = "*"
"""The catalogue of the object `config`."""

_DISCOVER: Final = "discover"
_INVOKE: Final = "invoke"
_READ: Final = "read"
_APPROVE: Final = "approve"
_DECIDING: Final = frozenset({_DISCOVER, _INVOKE, _READ, _APPROVE})
"""Actions of policy rows that decide about tools, prompts and resources."""
_LIMITS: Final = (RateCheck, QuotaCheck, LoopCheck, BudgetCheck)


@dataclass(frozen=True, slots=True)
class Right:
    """An action that the policy allows, and the row that decides it: its subject and its tier limit."""

    action: str
    row: PolicyRow | None


@dataclass(frozen=True, slots=True)
class GateEffect:
    """A gate rule that applies to calls, and the worst that it can do. `is_certain`: it does so to every call."""

    rule: str
    decision: Literal["hold", "deny"]
    is_certain: bool
    position: Position
    is_limit: bool = False
    """Whether it only counts: a rate, a quota, repetitions, or a budget."""


@dataclass(frozen=True, slots=True)
class AccessBlock:
    """Callers that have the same rights to the same objects of a catalogue by the same rows.

    `objects` have their names in policies: `tool:ticket_get`, `prompt:wiki.review`, `resource:wiki.pages`, `config`.
    """

    catalogue: str
    objects: tuple[str, ...]
    tier: str
    callers: Mask
    rights: tuple[Right, ...]
    gates: tuple[GateEffect, ...] = ()
    """Rules that hold or deny calls, at least sometimes. A rule that denies every call takes the right to call away."""

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(right.action for right in self.rights)

    def can(self, action: str) -> bool:
        return action in self.actions


_Target = DeclaredTool | DeclaredDefinition


@dataclass(frozen=True, slots=True)
class _ObjectFacts:
    """Everything about an object of a catalogue that a decision depends on, besides the caller."""

    kind: str
    tier: str
    is_usable: bool
    is_in_use: bool
    is_listed: bool
    by_object: tuple[RowNumber, ...]
    by_class: tuple[RowNumber, ...] | None
    queries: tuple[str, ...]
    rules: tuple[str, ...]


def enumerate_access(
    access: Access,
    cover: RowCover,
    callers: CallerGroups,
    *,
    at: datetime,
    progress: Progress | None = None,
) -> list[AccessBlock]:
    """Return all access, by catalogue. `progress` is called with the number of finished and of all catalogues."""
    enumeration = _Enumeration(access, cover, callers, at)
    names = sorted(access.snapshot.catalogues)
    found = list(enumeration.find_config_access())
    for done, name in enumerate(names, 1):
        found += enumeration.find_blocks(access.snapshot.catalogues[name])
        if progress is not None:
            progress(done, len(names))
    return found


class _Enumeration:
    def __init__(self, access: Access, cover: RowCover, callers: CallerGroups, at: datetime) -> None:
        self._access = access
        self._cover = cover
        self._callers = callers
        self._at = at
        self._ranks = access.snapshot.ranks
        self._rows = {(row.position.file, row.position.line): row for row in cover.rows}

    def find_blocks(self, catalogue: Catalogue) -> Iterator[AccessBlock]:
        """Yield the access to the objects of a catalogue."""
        audience = self._callers.find_holders(catalogue.audience)
        rules: dict[tuple[str, ...], tuple[GateRule, ...]] = {}
        for facts, targets in self._group(catalogue, rules).items():
            objects = tuple(each.object for each in targets)
            for part in self._split_callers(catalogue, facts, rules[facts.rules], audience=audience):
                ask = _Asker(self._access, self._callers.pick_one(part), catalogue.name, self._to_right)
                found = list(self._find_rights(ask, facts, targets[0], part, is_insider=bool(part & audience)))
                rights = tuple(right for right in found if right is not None)
                is_called = any(right.action == CALL for right in rights)
                gates = tuple(ask.find_gate_effects(targets[0], rules[facts.rules])) if is_called else ()
                if any(gate.decision == "deny" and gate.is_certain for gate in gates):
                    rights = tuple(right for right in rights if right.action != CALL)
                if rights:
                    yield AccessBlock(catalogue.name, objects, facts.tier, part, rights, gates)

    def find_config_access(self) -> Iterator[AccessBlock]:
        """Yield who administers the gateway or observes its metrics, by a row for any catalogue."""
        snapshot = self._access.snapshot
        tier = min(snapshot.tiers.values(), key=lambda each: each.rank, default=None)
        subjects = {
            self._cover.rows[number].subject
            for name in snapshot.catalogues
            for number in self._cover.find(name, CONFIG_OBJECT)
        }
        concerned = self._callers.find_holders(subjects)
        for part in self._callers.split(subjects, within=[concerned] if concerned and tier else ()):
            principal = self._callers.pick_one(part)
            asked = [
                _Asker(self._access, principal, name, self._to_right).ask_config(action, tier.name if tier else "")
                for action in (ADMINISTER, OBSERVE)
                for name in sorted(snapshot.catalogues)
            ]
            rights = {right.action: right for right in reversed(asked) if right is not None}
            if rights:
                ordered = tuple(rights[action] for action in ACTIONS if action in rights)
                yield AccessBlock(EVERYWHERE, (CONFIG_OBJECT,), tier.name if tier else "", part, ordered)

    def _group(
        self, catalogue: Catalogue, rules: dict[tuple[str, ...], tuple[GateRule, ...]]
    ) -> Mapping[_ObjectFacts, Sequence[_Target]]:
        """Return the objects of a catalogue by what decides about them; add the rules to those known by their names."""
        found: dict[_ObjectFacts, list[_Target]] = {}
        for target, is_listed in self._list_targets(catalogue):
            applying = tuple(rule for rule in self._access.find_rules(target, catalogue.name) if rule.mode == "enforce")
            names = tuple(rule.name for rule in applying)
            rules.setdefault(names, applying)
            found.setdefault(self._describe(catalogue, target, is_listed=is_listed, rules=names), []).append(target)
        return found

    def _list_targets(self, catalogue: Catalogue) -> Iterator[tuple[_Target, bool]]:
        snapshot = self._access.snapshot
        listed = {identity for name, identity in catalogue.tools.items() if name not in catalogue.hidden}
        for identity in sorted(set(catalogue.tools.values())):
            if (tool := snapshot.tools.get(identity)) is not None:
                yield tool, identity in listed
        for object in sorted({*catalogue.prompts.values(), *catalogue.resources}):
            yield snapshot.offers[object], True

    def _describe(
        self, catalogue: Catalogue, target: _Target, *, is_listed: bool, rules: tuple[str, ...]
    ) -> _ObjectFacts:
        trust, is_tool = target.trust, isinstance(target, DeclaredTool)
        artifact = target.artifact if isinstance(target, DeclaredTool) else None
        of_class = (
            self._find_rows(catalogue, f"class:{artifact}", trust.tier.name) if self._is_declared(artifact) else None
        )
        queries = self._access.snapshot.queries.get(artifact, {}) if artifact is not None else {}
        return _ObjectFacts(
            "tool" if isinstance(target, DeclaredTool) else target.kind,
            trust.tier.name,
            trust.callable and (trust.tier.callable or not is_tool),
            not isinstance(target, DeclaredTool) or target.is_callable_on(self._at.date()),
            is_listed,
            self._find_rows(catalogue, target.object, trust.tier.name),
            of_class,
            (CONTENT, *sorted(queries)) if is_tool else (),
            rules,
        )

    def _is_declared(self, artifact: str | None) -> bool:
        return artifact in self._access.snapshot.artifacts

    def _split_callers(
        self, catalogue: Catalogue, facts: _ObjectFacts, rules: Iterable[GateRule], *, audience: Mask
    ) -> list[Mask]:
        """Return the callers that may have a right, in parts that no row distinguishes. Outsiders can only approve."""
        objects = [f"tool:{name}" for name in facts.queries]
        objects += [rule.check.object for rule in rules if isinstance(rule.check, PermissionCheck)]
        main = {*facts.by_object, *(facts.by_class or ())}
        further = {number for each in objects for number in self._cover.find(catalogue.name, each)}
        subjects = {self._cover.rows[number].subject for number in main}
        approving = {
            self._cover.rows[number].subject for number in main if _APPROVE in self._cover.rows[number].actions
        }
        insiders = self._callers.find_holders(subjects) & audience
        outsiders = self._callers.find_holders(approving) & ~audience
        distinguishing = subjects | {self._cover.rows[number].subject for number in further}
        return [
            *self._callers.split(distinguishing, within=[insiders] if insiders else ()),
            *self._callers.split(approving, within=[outsiders] if outsiders else ()),
        ]

    def _find_rights(
        self, ask: "_Asker", facts: _ObjectFacts, target: _Target, part: Mask, *, is_insider: bool
    ) -> Iterator[Right | None]:
        """Yield the rights by the policy. An action that no row of the callers allows is not asked about."""
        allowed = self._find_allowed_actions(facts, part)
        if is_insider and isinstance(target, DeclaredTool):
            yield from self._find_tool_rights(ask, facts, target, allowed)
        elif is_insider and isinstance(target, DeclaredDefinition) and allowed & {_INVOKE, _READ}:
            yield ask.ask_definition(target)
        if _APPROVE in allowed:
            yield ask.ask_approval(target)

    def _find_tool_rights(
        self, ask: "_Asker", facts: _ObjectFacts, tool: DeclaredTool, allowed: frozenset[str]
    ) -> Iterator[Right | None]:
        if facts.is_in_use and allowed & {_DISCOVER, _INVOKE} and (sees := ask.ask_discovery(tool)) is not None:
            yield sees if facts.is_listed else None
            yield ask.ask_call(tool) if facts.is_usable and _INVOKE in allowed else None
        answers = [ask.ask_reading(tool, name) for name in facts.queries] if allowed & {_INVOKE, _READ} else []
        if None not in answers:
            yield from answers[:1]
        else:
            named = zip(facts.queries, answers, strict=True)
            yield from (Right(f"{READ}:{name}", right.row) for name, right in named if right is not None)

    def _find_allowed_actions(self, facts: _ObjectFacts, part: Mask) -> frozenset[str]:
        rows = (self._cover.rows[number] for number in {*facts.by_object, *(facts.by_class or ())})
        allows = (row for row in rows if row.effect == "allow" and self._callers.find_holders([row.subject]) & part)
        return frozenset(action for row in allows for action in row.actions)

    def _find_rows(self, catalogue: Catalogue, object: str, tier: str) -> tuple[RowNumber, ...]:
        """Return the rows that can decide about the object of that tier."""
        ranks = self._ranks
        return tuple(
            number
            for number in self._cover.find(catalogue.name, object)
            if ranks[tier] <= ranks[self._cover.rows[number].tier] and self._cover.rows[number].actions & _DECIDING
        )

    def _to_right(self, action: str, decision: AccessDecision) -> Right | None:
        if not decision.allowed:
            return None
        place = decision.row
        return Right(action, None if place is None else self._rows.get((place.file, place.line)))


@dataclass(frozen=True, slots=True)
class _Asker:
    """Asks the functions that decide calls for one caller in one catalogue."""

    access: Access
    principal: Principal
    catalogue: str
    to_right: Callable[[str, AccessDecision], Right | None]

    def ask_discovery(self, tool: DeclaredTool) -> Right | None:
        return self.to_right(SEE, self.access.decide_discovery(self.principal, self.catalogue, tool))

    def ask_call(self, tool: DeclaredTool) -> Right | None:
        return self.to_right(CALL, self.access.permits(self.principal, self.catalogue, tool))

    def ask_reading(self, tool: DeclaredTool, query: str) -> Right | None:
        asked = self.access.snapshot.query(query, tool)
        return self.to_right(READ, self.access.permits(self.principal, self.catalogue, asked))

    def ask_definition(self, offer: DeclaredDefinition) -> Right | None:
        action = CALL if offer.kind == "prompt" else READ
        return self.to_right(action, self.access.permits(self.principal, self.catalogue, offer))

    def ask_approval(self, target: _Target) -> Right | None:
        name = target.name if isinstance(target, DeclaredTool) else target.object
        decision = self.access.decide_approval(self.principal, catalogue=self.catalogue, tool=name)
        return self.to_right(APPROVE, decision)

    def ask_config(self, action: str, tier: str) -> Right | None:
        request = AccessRequest(self.principal.names, self.catalogue, CONFIG_OBJECT, action, tier)
        return self.to_right(action, self.access.authoriser.decide(request))

    def find_gate_effects(self, target: _Target, rules: Iterable[GateRule]) -> Iterator[GateEffect]:
        may = permission_lookup(self.access, self.principal, catalogue=self.catalogue, tier=target.trust.tier.name)
        for rule in rules:
            decision, is_certain = worst_decision(rule, may)
            is_limit = isinstance(rule.check, _LIMITS)
            if is_limit or isinstance(rule.check, FlowCheck):  # they let the first call through
                decision, is_certain = "deny", False
            if decision != "allow":
                yield GateEffect(rule.name, decision, is_certain, rule.position, is_limit)
