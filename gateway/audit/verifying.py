"""Whether a log is the one that was written, told from its rows and from anchors alone: nothing is connected to.

Rows are read twice: for what the log says about itself, then one by one. Of each shard only its end is remembered.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final, Protocol

from gateway.audit.anchor_checking import CheckedAnchors, checked
from gateway.audit.anchors import Anchor, NoAnchor, SignedAnchor
from gateway.audit.chain import Row, is_sound, origin
from gateway.audit.findings import Fault, Finding, Report, ShardReport
from gateway.audit.keys import PublicKey
from gateway.audit.lines import NotAnEntry
from gateway.audit.statements import Said, Statements, gathered, opens

MAX_FINDINGS: Final = 100

_TOLD_EVERY: Final = 8192


class Rows(Protocol):
    """A log. The rows of one shard come in the order of its entries; shards may come in any order, or mixed."""

    def __iter__(self) -> Iterator[Row]:
        """Raises `NotAnEntry` for what is no row. Every iteration begins anew."""
        ...

    def statements(self) -> Iterator[Row]:
        """At least the rows whose body has a `log`: what the log says about itself."""
        ...


@dataclass(frozen=True, slots=True)
class Scope:
    """Which entries to look at. What comes before `first` is taken on trust unless an anchor confirms it."""

    shard: str | None = None
    first: int = 1
    last: int | None = None

    def has(self, shard: str) -> bool:
        return self.shard is None or self.shard == shard


EVERYTHING: Final = Scope()


def verify(
    rows: Rows,
    *,
    anchors: Iterable[SignedAnchor | NoAnchor] | None = None,
    keys: Iterable[PublicKey] = (),
    scope: Scope = EVERYTHING,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Follow every shard to its end, or to the first entry of it that is wrong.

    Without anchors an end that was cut off, or a log that was written anew as a whole, is not noticed.
    """
    statements = gathered(rows.statements())
    verification = _Verification(statements, checked(anchors, keys, statements.rotations), scope)
    verification.follow(rows, progress)
    return verification.report()


@dataclass(slots=True)
class _Strand:
    """One shard, as far as it has been followed. `watched` are entries of which the hash is known from elsewhere."""

    shard: str
    head: bytes
    watched: dict[int, list[Anchor | Said]]
    next: int = 1
    first: int | None = None
    anchored: int | None = None
    is_broken: bool = False

    @property
    def last(self) -> int:
        return self.next - 1


@dataclass(slots=True)
class _Verification:
    statements: Statements
    anchors: CheckedAnchors
    scope: Scope
    strands: dict[str, _Strand] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    contradictions: list[tuple[Said, Finding]] = field(default_factory=list)
    pruned: dict[str, Said] = field(default_factory=dict)
    watched: dict[str, dict[int, list[Anchor | Said]]] = field(default_factory=dict)
    unconfirmed: list[str] = field(default_factory=list)
    entries: int = 0
    is_read: bool = False

    def __post_init__(self) -> None:
        self.findings += self.anchors.findings
        for anchors in self.anchors.by_shard.values():
            for anchor in anchors.values():
                self._watch(anchor)
        for said in self.statements.successions:
            self._watch(said)
        for said in self.statements.prunings:
            # What nobody anchored could have been written by whoever removed the entries.
            if not self.anchors.are_given or self.anchors.reach(said.by) >= said.by_seq:
                self._watch(said)
                if said.seq > self._pruned_to(said.shard):
                    self.pruned[said.shard] = said

    def follow(self, rows: Iterable[Row], progress: Callable[[int], None] | None) -> None:
        strands, first, last = self.strands, self.scope.first, self.scope.last
        strand = None
        try:
            for row in rows:
                shard, seq, prev, digest, body, at = row
                strand = strands.get(shard) or self._strand(shard)
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
                    self._break(strand, *_what_is_wrong(row, strand))
                    if len(self.findings) >= MAX_FINDINGS:
                        return
                    continue
                strand.next, strand.head = seq + 1, digest
                if seq in strand.watched and not self._compare(strand, seq, digest):
                    continue
                self.entries += 1
                if progress is not None and self.entries % _TOLD_EVERY == 0:
                    progress(self.entries)
            self.is_read = True
        except NotAnEntry as error:
            where = ("?", 0) if strand is None else (strand.shard, strand.next)
            self.findings.append(Finding("malformed", *where, error.message, error.line))

    def report(self) -> Report:
        if self.is_read:
            self._find_what_is_gone()
            self._find_what_is_unconfirmed()
        for said, finding in self.contradictions:
            if self._can_be_believed(said):
                self.findings.append(finding)
        notes = [
            f"entries of shard {shard} up to {said.seq} were pruned, says {said.by}:{said.by_seq}"
            + ("" if self._can_be_believed(said) else ", which was not verified")
            for shard, said in self.pruned.items()
            if self.scope.has(shard)
        ]
        if self.scope.first > 1:
            notes.append(f"entries before {self.scope.first} were not looked at")
        shards = [
            ShardReport(each.shard, each.first, each.last, each.head.hex(), each.anchored)
            for each in self.strands.values()
            if each.first is not None
        ]
        told = (*self.anchors.notes, *notes, *self.unconfirmed)
        return Report(self.entries, tuple(shards), tuple(self.findings), self.anchors.count, told)

    def _watch(self, known: Anchor | Said) -> None:
        self.watched.setdefault(known.shard, {}).setdefault(known.seq, []).append(known)

    def _strand(self, shard: str) -> _Strand:
        strand = _Strand(shard, origin(shard), self.watched.get(shard, {}))
        self.strands[shard] = strand
        return strand

    def _pruned_to(self, shard: str) -> int:
        return self.pruned[shard].seq if shard in self.pruned else 0

    def _begin(self, strand: _Strand, row: Row) -> bool:
        """Take a row as the first of its shard, if a shard may begin there."""
        beginning = max(self.scope.first, self._pruned_to(strand.shard) + 1)
        if row.seq > beginning:
            gone = f"entry {row.seq} is the first there is, and nothing says that earlier ones were pruned"
            strand.next = self.scope.first
            self._break(strand, "missing", strand.next, gone)
            return False
        strand.first = strand.next = row.seq
        if row.seq > 1:
            strand.head = row.prev
            return self._compare(strand, row.seq - 1, row.prev)
        if is_sound(row) and not opens(row):
            self._break(strand, "misplaced", row.seq, "the first entry does not open this shard")
            return False
        return True

    def _compare(self, strand: _Strand, seq: int, digest: bytes) -> bool:
        """Hold an entry against everything that is known of its hash from elsewhere."""
        for known in strand.watched.get(seq, ()):
            if known.hash == digest:
                if isinstance(known, Anchor):
                    strand.anchored = max(seq, strand.anchored or 0)
            elif isinstance(known, Anchor):
                start = min(seq, max((strand.anchored or 0) + 1, strand.first or 1))
                what = (
                    f"{_entries(start, seq)} not what was anchored at {_moment(known.at)}: the shard was written anew"
                )
                self._break(strand, "rewritten", start, what)
                return False
            else:
                what = f"it is not the entry that {known.by}:{known.by_seq} names"
                self.contradictions.append((known, Finding("succession", strand.shard, seq, what)))
        return True

    def _break(self, strand: _Strand, fault: Fault, seq: int, detail: str) -> None:
        strand.is_broken = True
        self.findings.append(Finding(fault, strand.shard, seq, detail))

    def _find_what_is_gone(self) -> None:
        for shard in self.watched:
            if not self.scope.has(shard):
                continue
            strand = self.strands.get(shard) or self._strand(shard)
            floor = max(strand.last, self._pruned_to(shard), self.scope.first - 1)
            beyond = [known for seq in strand.watched if seq > floor for known in strand.watched[seq]]
            believed = [each for each in beyond if isinstance(each, Anchor) or self._can_be_believed(each)]
            if not strand.is_broken and believed and (self.scope.last is None or floor < self.scope.last):
                self._break(strand, "truncated", floor + 1, _gone(floor + 1, max(believed, key=lambda each: each.seq)))

    def _find_what_is_unconfirmed(self) -> None:
        """Anchors that are given and tell of nothing confirm nothing: a file that was emptied is not a good one."""
        if not self.anchors.are_given or self.findings:
            return
        looked_at = [shard for shard, strand in self.strands.items() if strand.first is not None]
        without = [shard for shard in looked_at if not self.anchors.by_shard.get(shard)]
        if without == looked_at:
            what = (
                "there are no anchors" if not self.anchors.count else "no anchor is about an entry that was looked at"
            )
            self.findings.append(Finding("anchor-absent", "?", 0, f"{what}, so nothing is confirmed"))
        else:
            self.unconfirmed += [f"no anchor tells of shard {shard}" for shard in without]

    def _can_be_believed(self, said: Said) -> bool:
        """Whether the entry that says so is itself good."""
        strand = self.strands.get(said.by)
        if strand is None or strand.first is None:
            return False
        return strand.first <= said.by_seq <= strand.last


def _what_is_wrong(row: Row, strand: _Strand) -> tuple[Fault, int, str]:
    expected = strand.next
    if row.seq < expected:
        return "repeated", row.seq, f"entry {row.seq} stands after entry {expected - 1}"
    if row.seq > expected:
        return (
            "missing",
            expected,
            f"entry {row.seq} stands where {expected} belongs: entries were deleted or reordered",
        )
    if not is_sound(row):
        return "altered", row.seq, "the entry does not match its hash"
    if row.prev != strand.head:
        return _unlinked(row, strand)
    return "mistimed", row.seq, "the moment beside the entry is not the one in it"


def _unlinked(row: Row, strand: _Strand) -> tuple[Fault, int, str]:
    """Two entries that do not belong together: the earlier one is named unless it is known to be good."""
    if row.seq == strand.first or strand.anchored == strand.last:
        return "unlinked", row.seq, "the entry was written after another one than the one before it"
    what = f"entry {row.seq} was written after another one than this: one of the two was replaced"
    return "unlinked", strand.last, what


def _gone(start: int, known: Anchor | Said) -> str:
    if isinstance(known, Anchor):
        return f"{_entries(start, known.seq)} gone: an anchor of {_moment(known.at)} tells of entry {known.seq}"
    return f"{_entries(start, known.seq)} gone: {known.by}:{known.by_seq} tells of entry {known.seq}"


def _entries(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"


def _moment(at: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
