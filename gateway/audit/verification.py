"""Offline verification of a decision log from its rows and anchors.

Rows are read twice: for statements of the log about itself, then one by one. Only the end of each shard is held in
memory. An anchor is valid if it is signed by a given key or one that such a key endorses, and if none of its
predecessors is missing or contradicts it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final, Literal, Protocol

from gateway.audit.anchors import Anchor, InvalidAnchorLine, SignedAnchor
from gateway.audit.chain import (
    ChainRow,
    LogStatements,
    ShardStatement,
    collect_statements,
    genesis_hash,
    has_valid_hash,
    is_opening_row,
)
from gateway.audit.entries import AuditKeyRotation
from gateway.audit.json_lines import InvalidEntry
from gateway.audit.signing_keys import VerifyKey

Fault = Literal[
    "altered",
    "unlinked",
    "missing",
    "repeated",
    "misplaced",
    "mistimed",
    "malformed",
    "rewritten",
    "truncated",
    "succession",
    "anchor-forged",
    "anchor-key",
    "anchor-malformed",
    "anchor-missing",
    "anchor-absent",
]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A fault and the first entry it affects. Faults of anchors also have the `line` of their file."""

    fault: Fault
    shard: str
    seq: int
    detail: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.shard}:{self.seq} {self.fault}: {self.detail}"


@dataclass(frozen=True, slots=True)
class ShardReport:
    """The verified part of a shard. `anchored` is its last entry that an anchor confirms."""

    shard: str
    first: int
    last: int
    head: str
    anchored: int | None


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The result of a verification. `findings` has the first fault of every shard, in the order of discovery."""

    entries: int
    shards: tuple[ShardReport, ...]
    findings: tuple[AuditFinding, ...]
    anchors: int
    notes: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.findings

    @property
    def unanchored(self) -> int:
        """Number of valid entries that no anchor confirms."""
        return sum(each.last - max(each.anchored or 0, each.first - 1) for each in self.shards)


@dataclass(frozen=True, slots=True)
class VerifiedAnchors:
    """The valid anchors of each shard by entry, the faults of others, and notes."""

    by_shard: dict[str, dict[int, Anchor]]
    findings: tuple[AuditFinding, ...] = ()
    notes: tuple[str, ...] = ()
    are_given: bool = False

    @property
    def count(self) -> int:
        return sum(map(len, self.by_shard.values()))

    def reach(self, shard: str) -> int:
        """Return the last entry of a shard that an anchor confirms; 0 if there is none."""
        return max(self.by_shard.get(shard, {0: None}))


def verify_anchors(
    anchors: Iterable[SignedAnchor | InvalidAnchorLine] | None,
    keys: Iterable[VerifyKey],
    rotations: Iterable[AuditKeyRotation],
) -> VerifiedAnchors:
    ring = _build_ring(keys, rotations)
    by_shard: dict[str, dict[int, Anchor]] = {}
    findings: list[AuditFinding] = []
    notes: list[str] = []
    for found in anchors or ():
        if isinstance(found, InvalidAnchorLine):
            if found.is_cut_off:
                notes.append(f"line {found.line} of the anchors was cut off while it was written")
            else:
                findings.append(AuditFinding("anchor-malformed", "?", 0, "a line is not an anchor", found.line))
            continue
        known = by_shard.setdefault(found.anchor.shard, {})
        fault = _find_fault(found, ring, known)
        if fault is not None:
            findings.append(fault)
        else:
            known[found.anchor.seq] = found.anchor
    return VerifiedAnchors(by_shard, tuple(findings), tuple(notes), are_given=anchors is not None)


def _find_fault(found: SignedAnchor, ring: dict[str, VerifyKey], known: dict[int, Anchor]) -> AuditFinding | None:
    anchor = found.anchor
    key = ring.get(anchor.key)
    if key is None:
        what = f"the anchor is signed with key {anchor.key}, which is neither given nor endorsed"
        return AuditFinding("anchor-key", anchor.shard, anchor.seq, what, found.line)
    if not key.has_signed(anchor.encode(), found.signature):
        return AuditFinding("anchor-forged", anchor.shard, anchor.seq, "the signature is not valid", found.line)
    before = max(known, default=0)
    if anchor.seq - anchor.count > before:
        what = f"an anchor between entries {before + 1} and {anchor.seq - anchor.count} is missing"
        return AuditFinding("anchor-missing", anchor.shard, before + 1, what, found.line)
    same = known.get(anchor.seq, anchor)
    if same.hash != anchor.hash:
        what = f"two anchors contradict each other about entry {anchor.seq}: the shard was written twice"
        return AuditFinding("rewritten", anchor.shard, anchor.seq, what, found.line)
    return None


def _build_ring(keys: Iterable[VerifyKey], rotations: Iterable[AuditKeyRotation]) -> dict[str, VerifyKey]:
    """Return the given keys and all keys that they endorse, directly or indirectly."""
    ring = {key.id: key for key in keys}
    pending = list(rotations)
    while True:
        new_keys = [
            after
            for part in pending
            if part.after not in ring and (before := ring.get(part.before)) and (after := before.endorses(part))
        ]
        if not new_keys:
            return ring
        ring |= {key.id: key for key in new_keys}


MAX_FINDINGS: Final = 100

_PROGRESS_INTERVAL: Final = 8192


class LogReader(Protocol):
    """A log. The rows of one shard come in the order of its entries; shards may come in any order, or mixed."""

    def __iter__(self) -> Iterator[ChainRow]:
        """Iterate from the start. Raise `InvalidEntry` for anything but a row."""
        ...

    def statements(self) -> Iterator[ChainRow]:
        """Yield at least the rows whose body has a `log`: statements of the log about itself."""
        ...


@dataclass(frozen=True, slots=True)
class VerificationScope:
    """The entries to verify. Entries before `first` are trusted unless an anchor confirms them."""

    shard: str | None = None
    first: int = 1
    last: int | None = None

    def has(self, shard: str) -> bool:
        return self.shard is None or self.shard == shard


EVERYTHING: Final = VerificationScope()


def verify(
    rows: LogReader,
    *,
    anchors: Iterable[SignedAnchor | InvalidAnchorLine] | None = None,
    keys: Iterable[VerifyKey] = (),
    scope: VerificationScope = EVERYTHING,
    progress: Callable[[int], None] | None = None,
) -> VerificationReport:
    """Follow every shard to its end, or to its first invalid entry.

    Without anchors, a truncated shard or a completely rewritten log is not detected.
    """
    statements = collect_statements(rows.statements())
    verification = _Verification(statements, verify_anchors(anchors, keys, statements.rotations), scope)
    verification.follow(rows, progress)
    return verification.report()


@dataclass(slots=True)
class _Strand:
    """The verified part of one shard. `watched` are entries whose hash is known from anchors or statements."""

    shard: str
    head: bytes
    watched: dict[int, list[Anchor | ShardStatement]]
    next: int = 1
    first: int | None = None
    anchored: int | None = None
    is_broken: bool = False

    @property
    def last(self) -> int:
        return self.next - 1


@dataclass(slots=True)
class _Verification:
    statements: LogStatements
    anchors: VerifiedAnchors
    scope: VerificationScope
    strands: dict[str, _Strand] = field(default_factory=dict)
    findings: list[AuditFinding] = field(default_factory=list)
    contradictions: list[tuple[ShardStatement, AuditFinding]] = field(default_factory=list)
    pruned: dict[str, ShardStatement] = field(default_factory=dict)
    watched: dict[str, dict[int, list[Anchor | ShardStatement]]] = field(default_factory=dict)
    unconfirmed: list[str] = field(default_factory=list)
    entries: int = 0
    is_read: bool = False

    def __post_init__(self) -> None:
        self.findings += self.anchors.findings
        for anchors in self.anchors.by_shard.values():
            for anchor in anchors.values():
                self._watch(anchor)
        for statement in self.statements.successions:
            self._watch(statement)
        for statement in self.statements.prunings:
            # A statement that is not anchored may come from the attacker who removed the entries.
            if not self.anchors.are_given or self.anchors.reach(statement.by) >= statement.by_seq:
                self._watch(statement)
                if statement.seq > self._get_pruned_end(statement.shard):
                    self.pruned[statement.shard] = statement

    def follow(self, rows: Iterable[ChainRow], progress: Callable[[int], None] | None) -> None:
        strands, first, last = self.strands, self.scope.first, self.scope.last
        strand = None
        try:
            for row in rows:
                shard, seq, prev, digest, body, at = row
                strand = strands.get(shard) or self._add_strand(shard)
                if strand.is_broken or seq < first or (last is not None and seq > last) or not self.scope.has(shard):
                    continue
                if strand.first is None and not self._begin(strand, row):
                    continue
                if (
                    seq != strand.next
                    or prev != strand.head
                    or sha256(prev + seq.to_bytes(8, "big") + body).digest() != digest
                    or (at is not None and not body.startswith(b'{"at":%d,' % at))
                ):
                    self._break(strand, *_diagnose(row, strand))
                    if len(self.findings) >= MAX_FINDINGS:
                        return
                    continue
                strand.next, strand.head = seq + 1, digest
                if seq in strand.watched and not self._compare(strand, seq, digest):
                    continue
                self.entries += 1
                if progress is not None and self.entries % _PROGRESS_INTERVAL == 0:
                    progress(self.entries)
            self.is_read = True
        except InvalidEntry as error:
            where = ("?", 0) if strand is None else (strand.shard, strand.next)
            self.findings.append(AuditFinding("malformed", *where, error.message, error.line))

    def report(self) -> VerificationReport:
        if self.is_read:
            self._find_truncated()
            self._find_unconfirmed()
        for statement, finding in self.contradictions:
            if self._is_confirmed(statement):
                self.findings.append(finding)
        notes = [
            f"entries of shard {shard} up to {statement.seq} were pruned according to {statement.by}:{statement.by_seq}"
            + ("" if self._is_confirmed(statement) else ", which was not verified")
            for shard, statement in self.pruned.items()
            if self.scope.has(shard)
        ]
        if self.scope.first > 1:
            notes.append(f"entries before {self.scope.first} were not verified")
        shards = [
            ShardReport(each.shard, each.first, each.last, each.head.hex(), each.anchored)
            for each in self.strands.values()
            if each.first is not None
        ]
        all_notes = (*self.anchors.notes, *notes, *self.unconfirmed)
        return VerificationReport(self.entries, tuple(shards), tuple(self.findings), self.anchors.count, all_notes)

    def _watch(self, known: Anchor | ShardStatement) -> None:
        self.watched.setdefault(known.shard, {}).setdefault(known.seq, []).append(known)

    def _add_strand(self, shard: str) -> _Strand:
        strand = _Strand(shard, genesis_hash(shard), self.watched.get(shard, {}))
        self.strands[shard] = strand
        return strand

    def _get_pruned_end(self, shard: str) -> int:
        return self.pruned[shard].seq if shard in self.pruned else 0

    def _begin(self, strand: _Strand, row: ChainRow) -> bool:
        """Accept a row as the first of its shard, if a shard may begin there."""
        beginning = max(self.scope.first, self._get_pruned_end(strand.shard) + 1)
        if row.seq > beginning:
            what = f"entry {row.seq} is the first one, and there is no record that earlier ones were pruned"
            strand.next = self.scope.first
            self._break(strand, "missing", strand.next, what)
            return False
        strand.first = strand.next = row.seq
        if row.seq > 1:
            strand.head = row.prev
            return self._compare(strand, row.seq - 1, row.prev)
        if has_valid_hash(row) and not is_opening_row(row):
            self._break(strand, "misplaced", row.seq, "the first entry does not open this shard")
            return False
        return True

    def _compare(self, strand: _Strand, seq: int, digest: bytes) -> bool:
        """Compare an entry with all hashes of it that are known from anchors and statements."""
        for known in strand.watched.get(seq, ()):
            if known.hash == digest:
                if isinstance(known, Anchor):
                    strand.anchored = max(seq, strand.anchored or 0)
            elif isinstance(known, Anchor):
                start = min(seq, max((strand.anchored or 0) + 1, strand.first or 1))
                what = f"{_range(start, seq)} not what was anchored at {_to_utc(known.at)}: the shard was rewritten"
                self._break(strand, "rewritten", start, what)
                return False
            else:
                what = f"it is not the entry that {known.by}:{known.by_seq} names"
                self.contradictions.append((known, AuditFinding("succession", strand.shard, seq, what)))
        return True

    def _break(self, strand: _Strand, fault: Fault, seq: int, detail: str) -> None:
        strand.is_broken = True
        self.findings.append(AuditFinding(fault, strand.shard, seq, detail))

    def _find_truncated(self) -> None:
        for shard in self.watched:
            if not self.scope.has(shard):
                continue
            strand = self.strands.get(shard) or self._add_strand(shard)
            floor = max(strand.last, self._get_pruned_end(shard), self.scope.first - 1)
            beyond = [known for seq in strand.watched if seq > floor for known in strand.watched[seq]]
            valid = [each for each in beyond if isinstance(each, Anchor) or self._is_confirmed(each)]
            if not strand.is_broken and valid and (self.scope.last is None or floor < self.scope.last):
                self._break(
                    strand,
                    "truncated",
                    floor + 1,
                    _missing(floor + 1, max(valid, key=lambda each: each.seq)),
                )

    def _find_unconfirmed(self) -> None:
        """Report missing anchors: an anchor file that is given but covers no entry must not pass as a confirmation."""
        if not self.anchors.are_given or self.findings:
            return
        verified = [shard for shard, strand in self.strands.items() if strand.first is not None]
        without = [shard for shard in verified if not self.anchors.by_shard.get(shard)]
        if without == verified:
            what = "there are no anchors" if not self.anchors.count else "no anchor covers an entry that was verified"
            self.findings.append(AuditFinding("anchor-absent", "?", 0, f"{what}, so nothing is confirmed"))
        else:
            self.unconfirmed += [f"no anchor covers shard {shard}" for shard in without]

    def _is_confirmed(self, statement: ShardStatement) -> bool:
        """Whether the entry with the statement is itself valid."""
        strand = self.strands.get(statement.by)
        if strand is None or strand.first is None:
            return False
        return strand.first <= statement.by_seq <= strand.last


def _diagnose(row: ChainRow, strand: _Strand) -> tuple[Fault, int, str]:
    expected = strand.next
    if row.seq < expected:
        return "repeated", row.seq, f"entry {row.seq} follows entry {expected - 1}"
    if row.seq > expected:
        return (
            "missing",
            expected,
            f"entry {row.seq} is at the position of {expected}: entries were deleted or reordered",
        )
    if not has_valid_hash(row):
        return "altered", row.seq, "the entry does not match its hash"
    if row.prev != strand.head:
        return _to_unlinked(row, strand)
    return "mistimed", row.seq, "the time beside the entry differs from the time in it"


def _to_unlinked(row: ChainRow, strand: _Strand) -> tuple[Fault, int, str]:
    """Report two entries that are not linked: the earlier one, unless an anchor confirms it."""
    if row.seq == strand.first or strand.anchored == strand.last:
        return "unlinked", row.seq, "the entry does not link to the entry before it"
    what = f"entry {row.seq} does not link to this entry: one of the two was replaced"
    return "unlinked", strand.last, what


def _missing(start: int, known: Anchor | ShardStatement) -> str:
    if isinstance(known, Anchor):
        return f"{_range(start, known.seq)} missing: an anchor of {_to_utc(known.at)} covers entry {known.seq}"
    return f"{_range(start, known.seq)} missing: {known.by}:{known.by_seq} refers to entry {known.seq}"


def _range(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"


def _to_utc(at: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
