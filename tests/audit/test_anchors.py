"""Anchors: when they are due, what they contain, and a file that loses none."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from fcntl import LOCK_EX, LOCK_UN, flock
from pathlib import Path

import pytest

from gateway.audit.anchors import (
    AnchorFile,
    AnchorSigner,
    AnchorWriteFailed,
    InvalidAnchorLine,
    SignedAnchor,
    parse_anchor,
    read_anchor_position,
    read_anchors,
)
from gateway.audit.chain import Chain
from gateway.model.primitives.canonical_json import canonical
from tests.audit.sample_logs import KEY, NOON, OTHER_KEY, AnchorList, log

ROWS = log(length=8)
HEADS = [Chain.resume(row).head for row in ROWS]


def test_anchor_is_signed_canonical_json() -> None:
    sink = AnchorList()

    signed = AnchorSigner(KEY, sink).anchor(HEADS[4], NOON)

    assert signed is not None
    data = json.loads(sink.lines[0])
    assert data["anchor"] == {
        "at": NOON,
        "count": 5,
        "hash": ROWS[4].hash.hex(),
        "key": KEY.id,
        "seq": 5,
        "shard": "alpha",
    }
    assert KEY.public.has_signed(canonical(data["anchor"]).encode(), signed.signature)
    assert sink.anchors == [signed._replace(line=1)]


def test_anchor_is_due_after_enough_entries_or_enough_time() -> None:
    anchoring = AnchorSigner(KEY, AnchorList(), every_entries=4, every_microseconds=60)

    assert not anchoring.is_due(Chain("alpha").head, NOON)
    assert not anchoring.is_due(HEADS[0], NOON)
    assert not anchoring.is_due(HEADS[2], NOON + 59)
    assert anchoring.is_due(HEADS[2], NOON + 60)
    assert anchoring.is_due(HEADS[3], NOON)
    anchoring.anchor(HEADS[3], NOON)
    assert not anchoring.is_due(HEADS[3], NOON + 1000)
    assert not anchoring.is_due(HEADS[4], NOON + 1000)
    assert anchoring.is_due(HEADS[4], NOON + 1060)


def test_anchor_has_the_number_of_new_entries() -> None:
    sink = AnchorList()
    anchoring = AnchorSigner(KEY, sink, anchored=2)

    assert anchoring.anchor(HEADS[1], NOON) is None
    anchoring.anchor(HEADS[4], NOON)
    assert anchoring.anchor(HEADS[4], NOON) is None
    anchoring.rotate(OTHER_KEY)
    anchoring.anchor(HEADS[7], NOON)

    anchors = [(each.anchor.seq, each.anchor.count, each.anchor.key) for each in sink.anchors]
    assert anchors == [(5, 3, KEY.id), (8, 3, OTHER_KEY.id)]


def test_anchor_that_was_not_kept_is_covered_by_the_next(tmp_path: Path) -> None:
    anchoring = AnchorSigner(KEY, AnchorFile(tmp_path / "missing" / "anchors"))
    with pytest.raises(AnchorWriteFailed, match="No such file"):
        anchoring.anchor(HEADS[3], NOON)
    (tmp_path / "missing").mkdir()

    signed = anchoring.anchor(HEADS[5], NOON)

    assert signed is not None
    assert signed.anchor.count == 6


def test_file_is_appended_to_and_readable_for_few(tmp_path: Path) -> None:
    path = tmp_path / "anchors"
    for number in (2, 5):
        AnchorSigner(KEY, AnchorFile(path), anchored=read_anchor_position(path, "alpha")).anchor(HEADS[number], NOON)

    found = list(read_anchors(path))

    assert [each.anchor.seq for each in found if isinstance(each, SignedAnchor)] == [3, 6]
    assert read_anchor_position(path, "alpha") == 6
    assert read_anchor_position(path, "beta") == 0
    assert path.stat().st_mode & 0o007 == 0


def test_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "anchors"
    AnchorFile(path).write(b'{"anchor":{"at":17')
    AnchorSigner(KEY, AnchorFile(path)).anchor(HEADS[2], NOON)

    first, second = read_anchors(path)

    assert first == InvalidAnchorLine(1, is_cut_off=True)
    assert isinstance(second, SignedAnchor)


def test_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "anchors").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(AnchorWriteFailed):
        AnchorFile(tmp_path / "anchors").write(b"line\n")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_full_disk_is_reported() -> None:
    with pytest.raises(AnchorWriteFailed) as refused:
        AnchorFile(Path("/dev/full")).write(b"line\n")

    assert "disk is not full" in (refused.value.help or "")


def test_part_of_a_line_is_an_error(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(AnchorWriteFailed):
            AnchorFile(tmp_path / "anchors").write(b"a line that does not fit\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b'{"anchor":{"seq":"1"}}', b"\xff", b'{"a":"b"}'],
    ids=["empty", "other", "text", "bytes", "json"],
)
def test_other_lines_are_no_anchors(line: bytes) -> None:
    assert parse_anchor(line, 7) == InvalidAnchorLine(7, is_cut_off=not line.endswith(b'"}'))


def test_anchor_is_not_appended_while_another_process_appends(tmp_path: Path) -> None:
    path = tmp_path / "anchors"
    path.write_bytes(b'{"anchor":{"at":17')
    with path.open("rb") as held, ThreadPoolExecutor(1) as thread:
        flock(held, LOCK_EX)
        writing = thread.submit(AnchorFile(path).write, b"line\n")
        with pytest.raises(TimeoutError):
            writing.result(timeout=0.3)
        assert path.read_bytes() == b'{"anchor":{"at":17'

        flock(held, LOCK_UN)
        writing.result(timeout=30)

    assert path.read_bytes() == b'{"anchor":{"at":17\nline\n'
