"""Which anchors can be believed: signed by a key we were given or one it vouches for, none left out, none at odds."""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.audit.anchors import Anchor, NoAnchor, SignedAnchor
from gateway.audit.entries import KeyPart
from gateway.audit.findings import Finding
from gateway.audit.keys import PublicKey


@dataclass(frozen=True, slots=True)
class CheckedAnchors:
    """The anchors of each shard by entry, what is wrong with others, and what is only worth knowing."""

    by_shard: dict[str, dict[int, Anchor]]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    are_given: bool = False

    @property
    def count(self) -> int:
        return sum(map(len, self.by_shard.values()))

    def reach(self, shard: str) -> int:
        """The last entry of a shard that an anchor confirms; 0 if none does."""
        return max(self.by_shard.get(shard, {0: None}))


def checked(
    anchors: Iterable[SignedAnchor | NoAnchor] | None, keys: Iterable[PublicKey], rotations: Iterable[KeyPart]
) -> CheckedAnchors:
    ring = _ring(keys, rotations)
    by_shard: dict[str, dict[int, Anchor]] = {}
    findings: list[Finding] = []
    notes: list[str] = []
    for found in anchors or ():
        if isinstance(found, NoAnchor):
            if found.is_cut_off:
                notes.append(f"line {found.line} of the anchors was cut off while it was written")
            else:
                findings.append(Finding("anchor-malformed", "?", 0, "a line is no anchor", found.line))
            continue
        known = by_shard.setdefault(found.anchor.shard, {})
        fault = _fault(found, ring, known)
        if fault is not None:
            findings.append(fault)
        else:
            known[found.anchor.seq] = found.anchor
    return CheckedAnchors(by_shard, tuple(findings), tuple(notes), are_given=anchors is not None)


def _fault(found: SignedAnchor, ring: dict[str, PublicKey], known: dict[int, Anchor]) -> Finding | None:
    anchor = found.anchor
    key = ring.get(anchor.key)
    if key is None:
        what = f"the anchor is signed with key {anchor.key}, which is neither given nor vouched for"
        return Finding("anchor-key", anchor.shard, anchor.seq, what, found.line)
    if not key.has_signed(anchor.encode(), found.signature):
        return Finding("anchor-forged", anchor.shard, anchor.seq, "the signature is not the key's", found.line)
    before = max(known, default=0)
    if anchor.seq - anchor.count > before:
        what = f"an anchor between entries {before + 1} and {anchor.seq - anchor.count} was taken out"
        return Finding("anchor-missing", anchor.shard, before + 1, what, found.line)
    same = known.get(anchor.seq, anchor)
    if same.hash != anchor.hash:
        what = f"two anchors contradict each other about entry {anchor.seq}: the shard was written twice"
        return Finding("rewritten", anchor.shard, anchor.seq, what, found.line)
    return None


def _ring(keys: Iterable[PublicKey], rotations: Iterable[KeyPart]) -> dict[str, PublicKey]:
    """The keys we were given, and every key that one of the ring vouched for."""
    ring = {key.id: key for key in keys}
    waiting = list(rotations)
    while True:
        fresh = [
            after
            for part in waiting
            if part.after not in ring and (before := ring.get(part.before)) and (after := before.endorses(part))
        ]
        if not fresh:
            return ring
        ring |= {key.id: key for key in fresh}
