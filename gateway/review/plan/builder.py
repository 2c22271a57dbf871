"""Builds the plan of a configuration change for a reviewer: documents, rows, access, controls, and the risk.

Two sides are compared on one day in one environment. This module reads no files and prints nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Literal

from gateway.policy import Access
from gateway.registries import DefinitionChange as DefinitionChange
from gateway.registries import NameKind, PolicyCase, Snapshot, UpstreamDefinition, compare_definitions
from gateway.review.plan.access_changes import AccessChange, AccessSide, Progress, access_changes
from gateway.review.plan.document_changes import (
    DocumentChange,
    DocumentPair,
    Documents,
    Texts,
    document_change,
    format_path,
    pair_documents,
)
from gateway.review.plan.policy_changes import (
    CaseChange,
    GroupingRow,
    PolicyRow,
    RowChange,
    case_changes,
    case_findings,
    row_changes,
    row_findings,
)
from gateway.review.plan.risk import RiskFinding, Weight, highest_risk
from gateway.review.replay.differences import ReplayResult
from gateway.review.weakened_controls.weakness_finder import control_findings


@dataclass(frozen=True, slots=True)
class PlanInput:
    """A project before or after the change. Positions have the same file names on both sides.

    `documents` are those of the snapshot, the overlays of other environments, which do not apply here, and
    attestations without their lists of access.
    """

    access: Access
    documents: Documents
    rows: Sequence[PolicyRow | GroupingRow] = ()
    cases: Sequence[PolicyCase] = ()
    texts: Texts = field(default_factory=dict)
    definitions: Sequence[UpstreamDefinition] = ()
    """The definitions of upstreams."""

    @property
    def snapshot(self) -> Snapshot:
        return self.access.snapshot


@dataclass(frozen=True, slots=True)
class ActiveWaiver:
    """A waiver for a forbidden combination of flags that a catalogue has."""

    catalogue: str
    flags: tuple[str, ...]
    until: date
    by: str
    because: str


@dataclass(frozen=True, slots=True)
class PolicyTestCounts:
    """How many policy tests of the newer side pass and fail."""

    passed: int
    failed: int


@dataclass(frozen=True, slots=True)
class NameCollision:
    """Two tools with the same name in a catalogue; `existing` and `incoming` are an upstream, or `tools` for documents.

    `kind` is `prompt` for prompts with the same name, `resource` for groups of resources with the same URI pattern.
    """

    catalogue: str
    name: str
    existing: str
    incoming: str
    outcome: str
    kind: NameKind = "tool"


@dataclass(frozen=True, slots=True)
class Plan:
    before: str
    after: str
    environment: str | None
    documents: tuple[DocumentChange, ...]
    policies: tuple[RowChange, ...]
    cases: tuple[CaseChange, ...]
    access: tuple[AccessChange, ...]
    findings: tuple[RiskFinding, ...]
    waivers: tuple[ActiveWaiver, ...]
    tests: PolicyTestCounts | None = None
    definitions: tuple[DefinitionChange, ...] = ()
    """Changed parts of the definitions of upstreams."""
    collisions: tuple[NameCollision, ...] = ()
    """New collisions of names, with their outcome."""
    replay: ReplayResult | None = None
    """What both sides decide about recorded calls."""

    @property
    def is_empty(self) -> bool:
        return not (self.documents or self.policies or self.cases or self.access or self.definitions)

    @property
    def risk(self) -> Weight | None:
        """The highest risk of the findings; `None` if nothing changes."""
        return None if self.is_empty else highest_risk(self.findings)

    def count(self, change: str) -> int:
        changes = [each.change for each in self.documents]
        changes += [each.change for each in self.policies]
        changes += [each.change for each in self.cases]
        changes += {each.about: definition_change_kind(each) for each in self.definitions}.values()
        return sum(each == change for each in changes)


def build_plan(
    before: PlanInput,
    after: PlanInput,
    *,
    at: datetime,
    environment: str | None = None,
    tests: PolicyTestCounts | None = None,
    replay: ReplayResult | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Compare two sides as of a time. `progress` is called during the comparison of access."""
    documents, changed = _documents(before, after)
    policies = row_changes(before.rows, after.rows)
    cases = case_changes(before.cases, after.cases)
    definitions = tuple(compare_definitions(before.definitions, after.definitions))
    sides = (AccessSide(side.access, side.rows, at) for side in (before, after))
    access = access_changes(*sides, progress=progress)
    ranks = {**before.snapshot.ranks, **after.snapshot.ranks}
    findings = [
        *(_redact_note(found, before, after) for found in control_findings(changed, before.snapshot, after.snapshot)),
        *row_findings(policies, before=before.rows, after=after.rows, ranks=ranks),
        *case_findings(cases),
        *_overlay_findings(documents),
        *_attestation_findings(documents),
        *_access_findings(access),
        *_test_findings(tests),
        *_definition_findings(definitions),
        *_replay_findings(replay),
    ]
    if documents or policies or cases or definitions:
        findings.append(RiskFinding("changed", "plan"))
    return Plan(
        before.snapshot.revision,
        after.snapshot.revision,
        environment,
        documents,
        policies,
        cases,
        access,
        tuple(dict.fromkeys(findings)),
        tuple(_waivers(after.snapshot)),
        tests,
        definitions,
        tuple(_new_collisions(before.snapshot, after.snapshot)),
        replay,
    )


def _documents(before: PlanInput, after: PlanInput) -> tuple[tuple[DocumentChange, ...], list[DocumentPair]]:
    changes: list[DocumentChange] = []
    changed: list[DocumentPair] = []
    for pair in pair_documents(before.documents, after.documents):
        change = document_change(pair, before.texts, after.texts)
        if change is not None:
            snapshot = before.snapshot if pair.after is None else after.snapshot
            has_references = any(_has_references(side.texts, pair) for side in (before, after))
            changes.append(change if has_references else replace(change, summary=_summary(change, snapshot)))
            changed.append(pair)
    return tuple(changes), changed


def _summary(change: DocumentChange, snapshot: Snapshot) -> str:
    """Summarise a document that was added or removed."""
    if change.change == "changed":
        return ""
    if change.kind == "Tool" and (tool := snapshot.tools.get(change.name)):
        unknown = ("unknown effects",) if tool.trust.is_unknown else ()
        return " · ".join((tool.trust.tier.name, *sorted(tool.trust.known_flags), *unknown))
    if change.kind == "GateRule" and (rule := snapshot.gates.get(change.name)):
        return rule.mode
    if change.kind == "Catalogue" and (catalogue := snapshot.catalogues.get(change.name)):
        tools = len(catalogue.tools)
        return f"{tools} tool{'' if tools == 1 else 's'} for {', '.join(sorted(catalogue.audience))}"
    if change.kind == "TrustTier" and (tier := snapshot.tiers.get(change.name)):
        return f"rank {tier.rank}"
    return ""


def _has_references(texts: Texts, pair: DocumentPair) -> bool:
    written = texts.get((pair.kind, pair.name))
    return written is not None and bool(written.references)


def _redact_note(found: RiskFinding, before: PlanInput, after: PlanInput) -> RiskFinding:
    """Return the finding without its note, if the note could reveal a value from the environment."""
    kind, _, name = found.about.partition(" ")
    for side in (before, after):
        written = side.texts.get((kind, name))
        for path in written.references if written else ():
            if format_path(path).startswith(found.path) or found.path.startswith(format_path(path)):
                return replace(found, note="")
    return found


def _overlay_findings(documents: Sequence[DocumentChange]) -> Iterator[RiskFinding]:
    for each in documents:
        if each.kind == "Overlay":
            yield RiskFinding("other-environment", each.about, position=each.position)


def _attestation_findings(documents: Sequence[DocumentChange]) -> Iterator[RiskFinding]:
    for each in documents:
        if each.kind == "Attestation" and each.change == "removed":
            yield RiskFinding("attestation-removed", each.about, position=each.position)


def _access_findings(access: Sequence[AccessChange]) -> Iterator[RiskFinding]:
    counts: Mapping[str, int] = {
        "access-gained": sum(each.is_gain and each.after != "sees" for each in access),
        "access-seen": sum(each.is_gain and each.after == "sees" for each in access),
        "access-lost": sum(not each.is_gain for each in access),
    }
    for code, count in counts.items():
        if count:
            yield RiskFinding(code, "access")


def _test_findings(tests: PolicyTestCounts | None) -> Iterator[RiskFinding]:
    if tests is not None and tests.failed:
        yield RiskFinding("tests-fail", "tests", note=str(tests.failed))


def _replay_findings(replay: ReplayResult | None) -> Iterator[RiskFinding]:
    if replay is None:
        return
    if replay.is_widened:
        yield RiskFinding("replay-passed", "replay")
    if replay.count("allow-to-deny", "allow-to-hold", "hold-to-deny", "tool-gone"):
        yield RiskFinding("replay-stopped", "replay")
    if replay.not_replayable:
        yield RiskFinding("replay-incomplete", "replay")


def definition_change_kind(change: DefinitionChange) -> Literal["added", "removed", "changed"]:
    match change.what:
        case "added" | "removed" as whole:
            return whole
        case _:
            return "changed"


def _definition_findings(changes: Sequence[DefinitionChange]) -> Iterator[RiskFinding]:
    for each in changes:
        match each.grade:
            case "high":
                yield RiskFinding("definition-turned", each.about, each.path, each.words)
            case "medium":
                yield RiskFinding("definition-changed", each.about, each.path, each.words)
            case "low":
                yield RiskFinding("definition-edited", each.about, each.path, each.words)


def _new_collisions(before: Snapshot, after: Snapshot) -> Iterator[NameCollision]:
    known = set(_collisions(before))
    yield from (each for each in _collisions(after) if each not in known)


def _collisions(snapshot: Snapshot) -> Iterator[NameCollision]:
    for catalogue in snapshot.catalogues.values():
        for each in catalogue.collisions:
            name = each.incoming.name
            yield NameCollision(
                catalogue.name, name, each.existing.source, each.incoming.source, each.outcome, each.kind
            )


def _waivers(snapshot: Snapshot) -> Iterator[ActiveWaiver]:
    for catalogue in snapshot.catalogues.values():
        for combination in catalogue.combinations:
            if (waiver := combination.waiver) is not None:
                flags = tuple(sorted(combination.flags))
                yield ActiveWaiver(catalogue.name, flags, waiver.until, waiver.by, waiver.because)
