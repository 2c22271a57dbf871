"""What a change of the configuration means, for a reviewer: documents, rows, access, controls, and the risk of it all.

Two sides are compared on one day in one environment. Nothing is read from files and nothing is printed here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Literal

from gateway.access import Access
from gateway.governance.cases import PolicyCase
from gateway.governance.collisions import NameKind
from gateway.governance.imports import ImportedDefinition
from gateway.review.cases import CaseChange, case_changes, case_findings
from gateway.review.changes import DocumentChange, Documents, Pair, Texts, document_change, dotted, pairs
from gateway.review.controls import control_findings
from gateway.review.reach import AccessChange, Progress, Reach, access_changes
from gateway.review.risk import Finding, Weight, gravest
from gateway.review.rows import MemberRow, PolicyRow, RowChange, row_changes, row_findings
from gateway.snapshot import Snapshot
from gateway.vetting.drift import Change as DefinitionChange
from gateway.vetting.drift import drift


@dataclass(frozen=True, slots=True)
class Side:
    """A project as it stands before or after the change, its places named alike on both sides.

    `documents` are those of the snapshot, and the overlays of other environments: what these say does not count here,
    but somewhere.
    """

    access: Access
    documents: Documents
    rows: Sequence[PolicyRow | MemberRow] = ()
    cases: Sequence[PolicyCase] = ()
    texts: Texts = field(default_factory=dict)
    definitions: Sequence[ImportedDefinition] = ()
    """What upstreams bring."""

    @property
    def snapshot(self) -> Snapshot:
        return self.access.snapshot


@dataclass(frozen=True, slots=True)
class WaiverInForce:
    """A forbidden combination that a catalogue completes, and who bears it until when."""

    catalogue: str
    flags: tuple[str, ...]
    until: date
    by: str
    because: str


@dataclass(frozen=True, slots=True)
class Tests:
    """How many policy tests of the newer side hold and how many do not."""

    passed: int
    failed: int


@dataclass(frozen=True, slots=True)
class NameWon:
    """Two tools want one name in a catalogue; `source` is an upstream, or `tools` for our own documents.

    Prompts want names, too, and groups of resources the URIs of a pattern: `kind` says which of them.
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
    findings: tuple[Finding, ...]
    waivers: tuple[WaiverInForce, ...]
    tests: Tests | None = None
    definitions: tuple[DefinitionChange, ...] = ()
    """What upstreams bring, part by part, where it is not what it was."""
    collisions: tuple[NameWon, ...] = ()
    """Names that two tools want, and who gets them, where that is new."""

    @property
    def is_empty(self) -> bool:
        return not (self.documents or self.policies or self.cases or self.access or self.definitions)

    @property
    def risk(self) -> Weight | None:
        """`None` if nothing changes, whatever else is found."""
        return None if self.is_empty else gravest(self.findings)

    def count(self, change: str) -> int:
        changes = [each.change for each in self.documents]
        changes += [each.change for each in self.policies]
        changes += [each.change for each in self.cases]
        changes += {each.about: definition_sign(each) for each in self.definitions}.values()
        return sum(each == change for each in changes)


def make_plan(
    before: Side,
    after: Side,
    *,
    at: datetime,
    environment: str | None = None,
    tests: Tests | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Compare two sides as of a moment. `progress` is told how far the comparison of access is."""
    documents, changed = _documents(before, after)
    policies = row_changes(before.rows, after.rows)
    cases = case_changes(before.cases, after.cases)
    definitions = tuple(drift(before.definitions, after.definitions))
    reaches = (Reach(side.access, side.rows, at) for side in (before, after))
    access = access_changes(*reaches, progress=progress)
    ranks = {**before.snapshot.ranks, **after.snapshot.ranks}
    findings = [
        *(_discreet(found, before, after) for found in control_findings(changed, before.snapshot, after.snapshot)),
        *row_findings(policies, before=before.rows, after=after.rows, ranks=ranks),
        *case_findings(cases),
        *_overlay_findings(documents),
        *_access_findings(access),
        *_test_findings(tests),
        *_definition_findings(definitions),
    ]
    if documents or policies or cases or definitions:
        findings.append(Finding("changed", "plan"))
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
        tuple(_names_won(before.snapshot, after.snapshot)),
    )


def _documents(before: Side, after: Side) -> tuple[tuple[DocumentChange, ...], list[Pair]]:
    changes: list[DocumentChange] = []
    changed: list[Pair] = []
    for pair in pairs(before.documents, after.documents):
        change = document_change(pair, before.texts, after.texts)
        if change is not None:
            snapshot = before.snapshot if pair.after is None else after.snapshot
            is_filled = any(_filled(side.texts, pair) for side in (before, after))
            changes.append(change if is_filled else replace(change, summary=_summary(change, snapshot)))
            changed.append(pair)
    return tuple(changes), changed


def _summary(change: DocumentChange, snapshot: Snapshot) -> str:
    """What a document that came or went is, in a few words."""
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


def _filled(texts: Texts, pair: Pair) -> bool:
    written = texts.get((pair.kind, pair.name))
    return written is not None and bool(written.references)


def _discreet(found: Finding, before: Side, after: Side) -> Finding:
    """The finding without its note, if that could tell what the environment filled in."""
    kind, _, name = found.about.partition(" ")
    for side in (before, after):
        written = side.texts.get((kind, name))
        for path in written.references if written else ():
            if dotted(path).startswith(found.path) or found.path.startswith(dotted(path)):
                return replace(found, note="")
    return found


def _overlay_findings(documents: Sequence[DocumentChange]) -> Iterator[Finding]:
    for each in documents:
        if each.kind == "Overlay":
            yield Finding("other-environment", each.about, position=each.position)


def _access_findings(access: Sequence[AccessChange]) -> Iterator[Finding]:
    counts: Mapping[str, int] = {
        "access-gained": sum(each.is_gain and each.after != "sees" for each in access),
        "access-seen": sum(each.is_gain and each.after == "sees" for each in access),
        "access-lost": sum(not each.is_gain for each in access),
    }
    for code, count in counts.items():
        if count:
            yield Finding(code, "access")


def _test_findings(tests: Tests | None) -> Iterator[Finding]:
    if tests is not None and tests.failed:
        yield Finding("tests-fail", "tests", note=str(tests.failed))


def definition_sign(change: DefinitionChange) -> Literal["added", "removed", "changed"]:
    match change.what:
        case "added" | "removed" as whole:
            return whole
        case _:
            return "changed"


def _definition_findings(changes: Sequence[DefinitionChange]) -> Iterator[Finding]:
    for each in changes:
        match each.grade:
            case "high":
                yield Finding("definition-turned", each.about, each.path, each.words)
            case "medium":
                yield Finding("definition-changed", each.about, each.path, each.words)
            case "low":
                yield Finding("definition-edited", each.about, each.path, each.words)


def _names_won(before: Snapshot, after: Snapshot) -> Iterator[NameWon]:
    known = set(_collisions(before))
    yield from (each for each in _collisions(after) if each not in known)


def _collisions(snapshot: Snapshot) -> Iterator[NameWon]:
    for catalogue in snapshot.catalogues.values():
        for each in catalogue.collisions:
            name = each.incoming.name
            yield NameWon(catalogue.name, name, each.existing.source, each.incoming.source, each.outcome, each.kind)


def _waivers(snapshot: Snapshot) -> Iterator[WaiverInForce]:
    for catalogue in snapshot.catalogues.values():
        for combination in catalogue.combinations:
            if (waiver := combination.waiver) is not None:
                flags = tuple(sorted(combination.flags))
                yield WaiverInForce(catalogue.name, flags, waiver.until, waiver.by, waiver.because)
