"""Rows as lines of a file: each has exactly one spelling, and any other line is refused."""

import gzip
import json
from pathlib import Path

import pytest

from gateway.audit.json_lines import MAX_LINE, InvalidEntry, JsonLinesLog, UnreadableLog, from_line, to_line
from gateway.model.primitives.canonical_json import canonical
from tests.audit.sample_logs import log, write_lines

ROW = log()[1]._replace(at=None)
LINE = to_line(ROW)


def test_line_is_canonical_json_and_reads_back_as_the_row() -> None:
    assert from_line(LINE) == ROW
    assert canonical(json.loads(LINE)).encode() + b"\n" == LINE


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(LINE[:-1], id="without-its-end"),
        pytest.param(LINE.replace(b'"seq":2', b'"seq":02'), id="number-with-a-zero"),
        pytest.param(LINE.replace(b'"seq":2', b'"seq":0'), id="number-zero"),
        pytest.param(LINE.replace(b'"seq":2', b'"seq":9999999999999999999'), id="number-too-large"),
        pytest.param(LINE.replace(b'"seq":2', b'"seq": 2'), id="with-a-space"),
        pytest.param(LINE.replace(b'"shard":"alpha"', b'"shard":"al pha"'), id="name-of-a-shard"),
        pytest.param(LINE.replace(ROW.hash.hex().encode(), ROW.hash.hex().upper().encode()), id="capitals"),
        pytest.param(b"\xff\xfe" + LINE, id="bytes-before-it"),
        pytest.param(b"[]\n", id="other-json"),
    ],
)
def test_nothing_else_is_taken_for_a_row(line: bytes) -> None:
    assert from_line(line) is None


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_file_is_read_as_often_as_asked(tmp_path: Path, packed: bool) -> None:
    path = write_lines(tmp_path / "log", log())
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    file = JsonLinesLog(path)

    assert file.fraction() == 0
    assert list(file) == list(file) == [row._replace(at=None) for row in log()]
    assert [row.seq for row in file.statements()] == [1]
    assert file.fraction() == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(LINE + b"hello\n", "line 2 is not an entry of a decision log", id="another-line"),
        pytest.param(LINE + LINE[:50], "line 2 is not an entry of a decision log: it is cut off", id="cut-off"),
        pytest.param(
            LINE + b"x" * (MAX_LINE + 5), "line 2 is not an entry of a decision log: it is too long", id="too-long"
        ),
    ],
)
def test_line_that_is_none_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "log").write_bytes(content)
    file = JsonLinesLog(tmp_path / "log")

    with pytest.raises(InvalidEntry) as refused:
        list(file)

    assert (refused.value.message, refused.value.line) == (message, 2)
    assert list(file.statements()) == []


@pytest.mark.parametrize("cut", [3, 40], ids=["in-the-head", "in-the-middle"])
def test_broken_archive_cannot_be_read(tmp_path: Path, cut: int) -> None:
    path = write_lines(tmp_path / "log", log())
    path.write_bytes(gzip.compress(path.read_bytes())[:cut])

    with pytest.raises(UnreadableLog, match="cannot be read"):
        list(JsonLinesLog(path))


def test_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLog, match="No such file"):
        list(JsonLinesLog(tmp_path / "log"))


def test_progress_of_a_long_file_is_known_while_it_is_read(tmp_path: Path) -> None:
    file = JsonLinesLog(write_lines(tmp_path / "log", log(length=5000)))
    reading = iter(file)

    for _ in range(4096):
        next(reading)

    assert 0.5 < file.fraction() < 1
