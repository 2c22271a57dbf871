"""Verification names the first changed entry, whatever was done to the log."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.anchors import AnchorSigner, InvalidAnchorLine, SignedAnchor
from gateway.audit.chain import Chain, ChainRow, chain_hash, genesis_hash
from gateway.audit.entries import AuditEntry, AuditKeyRotation
from gateway.audit.json_lines import to_line
from gateway.audit.verification import (
    EVERYTHING,
    MAX_FINDINGS,
    AuditFinding,
    Fault,
    LogReader,
    VerificationScope,
    verify,
)
from tests.audit.sample_logs import (
    KEY,
    NOON,
    OTHER_KEY,
    PLACE,
    AnchorList,
    Lines,
    StoredAnchors,
    log,
    mark,
    sample_entries,
    sign_anchors,
    tamper_log,
)

ALPHA = log("alpha", 8)
BETA = log("beta", 6, after=[mark(ALPHA[-1])])
ANCHORS = sign_anchors(ALPHA[2], ALPHA[7], BETA[5])
KEYS = (KEY.public,)


def first(
    rows: LogReader,
    anchors: Sequence[SignedAnchor | InvalidAnchorLine] | None = None,
    scope: VerificationScope = EVERYTHING,
) -> str | None:
    """The first finding as `shard:seq fault`, or `None` if the log is good."""
    findings = verify(rows, anchors=anchors, keys=KEYS, scope=scope).findings
    return f"{findings[0].shard}:{findings[0].seq} {findings[0].fault}" if findings else None


def test_log_as_it_was_written_is_good() -> None:
    report = verify(StoredAnchors(ALPHA, BETA), anchors=ANCHORS, keys=KEYS)

    assert report.is_good
    assert (report.entries, report.anchors, report.unanchored) == (14, 3, 0)
    shards = [(each.shard, each.first, each.last, each.head, each.anchored) for each in report.shards]
    assert shards == [("alpha", 1, 8, ALPHA[-1].hash.hex(), 8), ("beta", 1, 6, BETA[-1].hash.hex(), 6)]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([*BETA, *ALPHA], id="newest-shard-first"),
        pytest.param([row for pair in zip(ALPHA, BETA, strict=False) for row in pair] + ALPHA[6:], id="mixed"),
    ],
)
def test_order_of_shards_means_nothing(rows: list[ChainRow]) -> None:
    assert first(StoredAnchors(rows), ANCHORS) is None


def test_entries_after_the_last_anchor_are_counted() -> None:
    report = verify(StoredAnchors(ALPHA), anchors=sign_anchors(ALPHA[4]), keys=KEYS)

    assert (report.is_good, report.unanchored) == (True, 3)
    assert verify(StoredAnchors(ALPHA)).unanchored == 8


def flip(row: ChainRow, position: int = 40) -> ChainRow:
    body = bytearray(row.body)
    body[position] ^= 1
    return row._replace(body=bytes(body))


TAMPERED: list[tuple[str, Callable[[], list[ChainRow]], str]] = [
    ("flipped byte", lambda: [*ALPHA[:4], flip(ALPHA[4]), *ALPHA[5:]], "alpha:5 altered"),
    ("flipped byte of the first", lambda: [flip(ALPHA[0]), *ALPHA[1:]], "alpha:1 altered"),
    ("flipped byte of the last", lambda: [*ALPHA[:7], flip(ALPHA[7])], "alpha:8 altered"),
    ("another hash", lambda: [*ALPHA[:4], ALPHA[4]._replace(hash=b"h" * 32), *ALPHA[5:]], "alpha:5 altered"),
    ("another prev", lambda: [*ALPHA[:4], ALPHA[4]._replace(prev=b"h" * 32), *ALPHA[5:]], "alpha:5 altered"),
    ("another moment", lambda: [*ALPHA[:4], ALPHA[4]._replace(at=NOON), *ALPHA[5:]], "alpha:5 mistimed"),
    ("deleted", lambda: [*ALPHA[:4], *ALPHA[5:]], "alpha:5 missing"),
    ("first deleted", lambda: ALPHA[1:], "alpha:1 missing"),
    ("first three deleted", lambda: ALPHA[3:], "alpha:1 missing"),
    ("swapped", lambda: [*ALPHA[:4], ALPHA[5], ALPHA[4], *ALPHA[6:]], "alpha:5 missing"),
    (
        "swapped bodies",
        lambda: [*ALPHA[:4], ALPHA[4]._replace(body=ALPHA[5].body, at=ALPHA[5].at), *ALPHA[5:]],
        "alpha:5 altered",
    ),
    ("repeated", lambda: [*ALPHA[:5], ALPHA[4], *ALPHA[5:]], "alpha:5 repeated"),
    ("renumbered", lambda: [*ALPHA[:4], ALPHA[5]._replace(seq=5), *ALPHA[6:]], "alpha:5 altered"),
    ("replaced with a hash that fits", lambda: [*ALPHA[:4], tamper_log(ALPHA, 5)[4], *ALPHA[5:]], "alpha:5 unlinked"),
    (
        "spliced from another shard",
        lambda: [*ALPHA[:4], BETA[4]._replace(shard="alpha"), *ALPHA[5:]],
        "alpha:4 unlinked",
    ),
    ("shard under another name", lambda: [row._replace(shard="gamma") for row in ALPHA], "gamma:1 misplaced"),
    (
        "tail of another shard",
        lambda: [*ALPHA[:4], *(row._replace(shard="alpha") for row in BETA[4:])],
        "alpha:4 unlinked",
    ),
]


@pytest.mark.parametrize(("rows", "named"), [case[1:] for case in TAMPERED], ids=[case[0] for case in TAMPERED])
def test_tampering_is_named_without_any_anchor(rows: Callable[[], list[ChainRow]], named: str) -> None:
    assert first(StoredAnchors(rows())) == named


def test_entry_that_an_anchor_confirms_is_not_accused() -> None:
    spliced = [*ALPHA[:3], BETA[3]._replace(shard="alpha"), *ALPHA[4:]]

    assert first(StoredAnchors(spliced)) == "alpha:3 unlinked"
    assert first(StoredAnchors(spliced), sign_anchors(ALPHA[2])) == "alpha:4 unlinked"


def test_cut_off_end_is_named_by_an_anchor() -> None:
    assert first(StoredAnchors(ALPHA[:6])) is None
    assert first(StoredAnchors(ALPHA[:6]), sign_anchors(ALPHA[2], ALPHA[7])) == "alpha:7 truncated"
    assert first(StoredAnchors(ALPHA[:7]), sign_anchors(ALPHA[7])) == "alpha:8 truncated"


def test_cut_off_end_is_named_by_the_next_shard() -> None:
    assert first(StoredAnchors(ALPHA[:6], BETA)) == "alpha:7 truncated"


def test_shard_that_is_gone_is_named() -> None:
    assert first(StoredAnchors(BETA)) == "alpha:1 truncated"
    assert first(StoredAnchors(ALPHA), ANCHORS) == "beta:1 truncated"
    assert first(StoredAnchors([]), ANCHORS) == "alpha:1 truncated"


@pytest.mark.parametrize(("start", "named"), [(1, "alpha:1"), (2, "alpha:1"), (5, "alpha:4"), (8, "alpha:4")])
def test_log_that_was_written_anew_is_named_by_an_anchor(start: int, named: str) -> None:
    """Verification starts at the last entry that an anchor confirms; it cannot know which later entry changed first."""
    forged = tamper_log(ALPHA, start)

    assert first(StoredAnchors(forged)) is None
    assert first(StoredAnchors(forged), sign_anchors(ALPHA[2], ALPHA[7])) == f"{named} rewritten"


def test_log_that_was_written_anew_contradicts_the_next_shard() -> None:
    forged = tamper_log(ALPHA, 5)

    for rows in ([*forged, *BETA], [*BETA, *forged]):
        assert first(StoredAnchors(rows)) == "alpha:8 succession"


def test_next_shard_that_was_tampered_with_does_not_accuse_others() -> None:
    lying = flip(BETA[0], BETA[0].body.index(ALPHA[-1].hash.hex().encode()))

    assert verify(StoredAnchors(ALPHA, [lying, *BETA[1:]])).findings == (
        AuditFinding("altered", "beta", 1, "the entry does not match its hash"),
    )


def test_first_fault_of_every_shard_is_reported() -> None:
    report = verify(StoredAnchors([*ALPHA[:4], *ALPHA[5:], flip(BETA[0]), *BETA[1:]]))

    assert [(each.shard, each.seq) for each in report.findings] == [("alpha", 5), ("beta", 1)]
    assert report.entries == 4
    assert str(report.findings[1]) == "beta:1 altered: the entry does not match its hash"


def test_hopeless_log_is_not_read_to_its_end() -> None:
    rows = [flip(log(f"shard-{number}", 1)[0]) for number in range(MAX_FINDINGS + 50)]

    assert len(verify(StoredAnchors(rows)).findings) == MAX_FINDINGS


def test_shard_begins_with_an_entry_that_opens_it() -> None:
    assert first(StoredAnchors(linked("alpha", sample_entries(2).encode()))) == "alpha:1 misplaced"


def test_line_that_is_no_entry_is_named_by_what_came_before() -> None:
    lines = [to_line(row) for row in ALPHA]

    report = verify(Lines([*lines[:4], b"}{\n", *lines[5:]]))

    assert [(each.shard, each.seq, each.fault, each.line) for each in report.findings] == [("alpha", 5, "malformed", 5)]
    assert verify(Lines([b"hello\n"])).findings[0].shard == "?"


def test_progress_is_reported_from_time_to_time() -> None:
    shards: list[int] = []

    verify(StoredAnchors(log(length=20_000)), progress=shards.append)

    assert shards == [8192, 16384]


def linked(shard: str, body: bytes) -> list[ChainRow]:
    """A shard of one entry with arbitrary contents; our chains never begin like this."""
    prev = genesis_hash(shard)
    return [ChainRow(shard, 1, prev, chain_hash(prev, 1, body), body)]


# Anchors


def forged(signed: SignedAnchor, **change: Any) -> SignedAnchor:
    return signed._replace(anchor=replace(signed.anchor, **change))


ONE = ANCHORS[0]
BAD_ANCHORS: list[tuple[str, Sequence[SignedAnchor | InvalidAnchorLine], str]] = [
    ("another hash", [forged(ONE, hash=b"h" * 32)], "alpha:3 anchor-forged"),
    ("another place", [forged(ONE, seq=4)], "alpha:4 anchor-forged"),
    ("another shard", [forged(ONE, shard="gamma")], "gamma:3 anchor-forged"),
    ("another moment", [forged(ONE, at=1)], "alpha:3 anchor-forged"),
    ("another count", [forged(ONE, count=2)], "alpha:3 anchor-forged"),
    ("another signature", [ONE._replace(signature=b"s" * 64)], "alpha:3 anchor-forged"),
    ("signed by another key", sign_anchors(ALPHA[2], key=OTHER_KEY), "alpha:3 anchor-key"),
    ("in the name of our key", [forged(sign_anchors(ALPHA[2], key=OTHER_KEY)[0], key=KEY.id)], "alpha:3 anchor-forged"),
    ("taken out", [ANCHORS[1]], "alpha:1 anchor-missing"),
    ("no anchor at all", [InvalidAnchorLine(1, is_cut_off=False)], "?:0 anchor-malformed"),
    ("of two different logs", [*sign_anchors(ALPHA[2]), *sign_anchors(tamper_log(ALPHA, 2)[2])], "alpha:3 rewritten"),
]


@pytest.mark.parametrize(
    ("anchors", "named"), [case[1:] for case in BAD_ANCHORS], ids=[case[0] for case in BAD_ANCHORS]
)
def test_bad_anchor_is_named(anchors: Sequence[SignedAnchor | InvalidAnchorLine], named: str) -> None:
    assert first(StoredAnchors(ALPHA), anchors) == named


def test_anchor_that_was_never_finished_is_only_noted() -> None:
    report = verify(StoredAnchors(ALPHA), anchors=[ONE, InvalidAnchorLine(2, is_cut_off=True)], keys=KEYS)

    assert report.is_good
    assert report.notes == ("line 2 of the anchors was cut off while it was written",)


def test_same_anchor_twice_does_no_harm() -> None:
    assert first(StoredAnchors(ALPHA), [ONE, ONE]) is None


# Keys


def rotated(part: AuditKeyRotation) -> tuple[list[ChainRow], list[SignedAnchor]]:
    rows = log("alpha", 4, more=[AuditEntry("key-rotated", NOON, PLACE, key=part), sample_entries(6)])
    sink = AnchorList()
    anchoring = AnchorSigner(KEY, sink)
    anchoring.anchor(Chain.resume(rows[3]).head, NOON)
    anchoring.rotate(OTHER_KEY)
    anchoring.anchor(Chain.resume(rows[5]).head, NOON)
    return rows, sink.anchors


def test_key_that_the_one_before_vouches_for_is_accepted() -> None:
    rows, anchors = rotated(KEY.endorse(OTHER_KEY.public))

    assert first(StoredAnchors(rows), anchors) is None


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(OTHER_KEY.endorse(KEY.public), id="by-itself"),
        pytest.param(KEY.endorse(OTHER_KEY.public)._replace(endorsement="AAAA"), id="by-nobody"),
    ],
)
def test_key_that_is_not_vouched_for_is_refused(part: AuditKeyRotation) -> None:
    rows, anchors = rotated(part)

    assert first(StoredAnchors(rows), anchors) == "alpha:6 anchor-key"


def test_key_part_that_is_none_is_ignored() -> None:
    chain = Chain.resume(ALPHA[-1])
    odd = chain.append([(NOON, b'{"at":%d,"event":"key-rotated","log":{"key":{"before":1}}}' % NOON)])

    assert first(StoredAnchors(ALPHA, odd)) is None


# Pruning


def pruned(upto: ChainRow, *, by: str = "beta") -> list[ChainRow]:
    return log(by, 3, more=[AuditEntry("log-pruned", NOON, PLACE, pruned=mark(upto))])


def test_pruned_entries_are_not_missed() -> None:
    report = verify(StoredAnchors(ALPHA[5:], pruned(ALPHA[4])))

    assert report.is_good
    assert report.notes == ("entries of shard alpha up to 5 were pruned according to beta:4",)
    assert report.shards[0].first == 6


def test_pruning_that_was_not_looked_at_is_reported() -> None:
    report = verify(StoredAnchors(ALPHA[5:], pruned(ALPHA[4])), scope=VerificationScope("alpha"))

    assert report.notes == ("entries of shard alpha up to 5 were pruned according to beta:4, which was not verified",)


def test_shard_that_was_pruned_as_a_whole_is_not_missed() -> None:
    last = log("gamma", 3, after=[mark(ALPHA[-1])])

    assert first(StoredAnchors(pruned(ALPHA[-1]), last)) is None


def test_pruning_that_was_not_finished_is_good() -> None:
    assert first(StoredAnchors(ALPHA[2:], pruned(ALPHA[4]))) is None
    assert first(StoredAnchors(ALPHA, pruned(ALPHA[4]))) is None


def test_last_pruning_counts() -> None:
    rows = [*pruned(ALPHA[4]), *pruned(ALPHA[2], by="gamma")]

    assert first(StoredAnchors(ALPHA[5:], rows)) is None


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        pytest.param(ALPHA[6:], "alpha:1 missing", id="more-than-was-said"),
        pytest.param(tamper_log(ALPHA, 4)[5:], "alpha:5 succession", id="another-log"),
    ],
)
def test_pruning_excuses_nothing_else(rows: list[ChainRow], named: str) -> None:
    assert first(StoredAnchors(rows, pruned(ALPHA[4]))) == named


def test_pruning_counts_once_it_is_anchored() -> None:
    """An attacker who deletes entries could also have written that they were pruned."""
    beta = pruned(ALPHA[4])
    anchors = sign_anchors(ALPHA[7])

    assert first(StoredAnchors(ALPHA[5:], beta), anchors) == "alpha:1 missing"
    assert first(StoredAnchors(ALPHA[5:], beta), [*anchors, *sign_anchors(beta[-1])]) is None


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'"pruned":{"hash":"zz","seq":5,"shard":"alpha"}', id="no-hash"),
        pytest.param(b'"pruned":{"seq":5,"shard":"alpha"}', id="half"),
        pytest.param(b'"pruned":7', id="number"),
        pytest.param(b'"x":1', id="nothing"),
    ],
)
def test_pruning_that_makes_no_sense_excuses_nothing(body: bytes) -> None:
    chain = Chain.resume(BETA[-1])
    odd = chain.append([(NOON, b'{"at":%d,"event":"log-pruned","log":{%b}}' % (NOON, body))])

    assert first(StoredAnchors(ALPHA[5:], BETA, odd)) == "alpha:1 missing"


@pytest.mark.parametrize(
    "opened",
    [
        b'"opened":{"predecessors":[{"seq":"x"},7],"shard":"gamma"}',
        b'"opened":{"predecessors":7,"shard":"gamma"}',
    ],
    ids=["items", "no-list"],
)
def test_predecessors_that_make_no_sense_are_ignored(opened: bytes) -> None:
    assert first(StoredAnchors(linked("gamma", b'{"at":1,"event":"shard-opened","log":{%b}}' % opened))) is None


@pytest.mark.parametrize(
    "body", [b"[]", b"no json", b'{"event":"shard-opened","log":{"opened":7}}'], ids=["list", "text", "odd"]
)
def test_first_entry_that_makes_no_sense_opens_nothing(body: bytes) -> None:
    assert first(StoredAnchors(linked("gamma", body))) == "gamma:1 misplaced"


# Partial logs


def test_part_of_a_log_can_be_verified() -> None:
    assert first(StoredAnchors(ALPHA[3:]), scope=VerificationScope(first=4)) is None
    assert first(StoredAnchors(ALPHA), scope=VerificationScope(first=4, last=6)) is None
    report = verify(StoredAnchors(ALPHA), scope=VerificationScope(first=4, last=6))
    assert (report.entries, report.notes) == (3, ("entries before 4 were not verified",))


@pytest.mark.parametrize(
    ("rows", "scope", "named"),
    [
        pytest.param(ALPHA[4:], VerificationScope(first=4), "alpha:4 missing", id="first-of-the-part"),
        pytest.param(tamper_log(ALPHA, 3)[3:], VerificationScope(first=4), "alpha:3 rewritten", id="after-an-anchor"),
        pytest.param(ALPHA[:5], VerificationScope(first=4), "alpha:6 truncated", id="end"),
        pytest.param(ALPHA[:5], VerificationScope(last=6), "alpha:6 truncated", id="end-of-the-part"),
        pytest.param(ALPHA[:5], VerificationScope(last=5), None, id="part-before-the-end"),
        pytest.param(ALPHA[:2], VerificationScope(first=4), "alpha:4 truncated", id="nothing-of-the-part"),
    ],
)
def test_part_is_held_against_anchors(rows: list[ChainRow], scope: VerificationScope, named: str | None) -> None:
    assert first(StoredAnchors(rows), sign_anchors(ALPHA[2], ALPHA[7]), scope) == named


def test_one_shard_can_be_verified_alone() -> None:
    report = verify(StoredAnchors(ALPHA[:6], BETA), anchors=ANCHORS, keys=KEYS, scope=VerificationScope("beta"))

    assert report.is_good
    assert [each.shard for each in report.shards] == ["beta"]


# Arbitrary changes


WHOLE = [*log("alpha", 7), *log("beta", 5, after=[mark(log("alpha", 7)[-1])])]
WHOLE_LINES = [to_line(row) for row in WHOLE]
ENDS = sign_anchors(WHOLE[6], WHOLE[11])


indices = st.integers(0, len(WHOLE) - 1)


def faults_of(lines: Sequence[bytes]) -> tuple[AuditFinding, ...]:
    return verify(Lines(lines), anchors=ENDS, keys=KEYS).findings


def names(finding: AuditFinding, index: int) -> bool:
    """Whether a finding is about that entry, an earlier one of its shard, or that very line."""
    row = WHOLE[index]
    return (finding.shard == row.shard and finding.seq <= row.seq) or finding.line == index + 1


@given(indices, st.integers(0), st.integers(0, 7))
def test_any_flipped_bit_is_named_where_it_is(index: int, position: int, bit: int) -> None:
    line = bytearray(WHOLE_LINES[index])
    line[position % len(line)] ^= 1 << bit
    changed = b"".join([*WHOLE_LINES[:index], bytes(line), *WHOLE_LINES[index + 1 :]])

    found = faults_of([each + b"\n" for each in changed.split(b"\n")[:-1]] or [changed])

    assert any(names(each, index) for each in found)


@given(indices, st.integers(1, len(WHOLE)))
def test_any_deletion_is_named_where_it_begins(start: int, count: int) -> None:
    found = faults_of([*WHOLE_LINES[:start], *WHOLE_LINES[start + count :]])

    assert any(names(each, start) for each in found)


@given(indices, st.integers(0, len(WHOLE)))
def test_any_repetition_is_named(index: int, where: int) -> None:
    found = faults_of([*WHOLE_LINES[:where], WHOLE_LINES[index], *WHOLE_LINES[where:]])

    assert names(found[0], index)


@given(st.tuples(indices, indices).map(sorted).filter(lambda pair: WHOLE[pair[0]].shard == WHOLE[pair[1]].shard))
def test_any_swap_within_a_shard_is_named(pair: list[int]) -> None:
    lines = list(WHOLE_LINES)
    lines[pair[0]], lines[pair[1]] = lines[pair[1]], lines[pair[0]]

    found = faults_of(lines)

    assert (pair[0] == pair[1]) == (not found)
    assert all(names(each, pair[0]) for each in found[:1])


@given(indices, st.sampled_from([b'{"at":1,"v":1}', b"{}", b'{"at":1,"event":"shard-opened"}']))
def test_any_replaced_body_is_named(index: int, body: bytes) -> None:
    row = WHOLE[index]._replace(body=body)

    found = faults_of([*WHOLE_LINES[:index], to_line(row), *WHOLE_LINES[index + 1 :]])

    assert names(found[0], index)


@given(indices)
def test_any_rewriting_of_the_rest_is_named(start: int) -> None:
    name = WHOLE[start].shard
    forgery = tamper_log([row for row in WHOLE if row.shard == name], WHOLE[start].seq)

    found = faults_of([to_line(row) for row in [*(row for row in WHOLE if row.shard != name), *forgery]])

    assert found[0].fault == "rewritten"
    assert names(found[0], start)


@given(indices)
def test_any_replaced_entry_with_a_fitting_hash_is_named(index: int) -> None:
    row = WHOLE[index]
    body = row.body.replace(b"gw-1", b"gw-2")
    fitting = row._replace(body=body, hash=chain_hash(row.prev, row.seq, body))

    found = faults_of([*WHOLE_LINES[:index], to_line(fitting), *WHOLE_LINES[index + 1 :]])

    assert names(found[0], index)


def test_every_fault_is_put_to_the_test() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")

    assert [fault for fault in get_args(Fault) if f' {fault}"' not in tests and f'"{fault}"' not in tests] == []


# Anchors without matching entries


@pytest.mark.parametrize(
    "given",
    [
        pytest.param([], id="empty"),
        pytest.param([InvalidAnchorLine(1, is_cut_off=True)], id="cut-off"),
    ],
)
def test_anchors_that_are_none_confirm_nothing(given: list[SignedAnchor | InvalidAnchorLine]) -> None:
    report = verify(StoredAnchors(ALPHA), anchors=given, keys=KEYS)

    assert not report.is_good
    assert str(report.findings[0]) == "?:0 anchor-absent: there are no anchors, so nothing is confirmed"
    assert first(StoredAnchors([]), given) == "?:0 anchor-absent"


def test_anchors_of_another_shard_confirm_nothing() -> None:
    assert first(StoredAnchors(ALPHA, BETA), sign_anchors(BETA[5]), VerificationScope("alpha")) == "?:0 anchor-absent"
    assert first(StoredAnchors(ALPHA), sign_anchors(log("gamma", 3)[2])) == "gamma:1 truncated"
    assert first(StoredAnchors([]), ANCHORS) == "alpha:1 truncated"


def test_shard_without_an_anchor_is_noted() -> None:
    report = verify(StoredAnchors(ALPHA, BETA), anchors=sign_anchors(ALPHA[7]), keys=KEYS)

    assert report.is_good
    assert "no anchor covers shard beta" in report.notes
