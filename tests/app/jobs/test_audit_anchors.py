"""Anchors of the decision log of a running gateway: at the start, at intervals and at the end."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.app.audit_settings import AnchorPolicy
from gateway.app.jobs.audit_anchors import AnchorWriter
from gateway.audit.anchors import AnchorWriteFailed, SignedAnchor, parse_anchor, read_anchors
from gateway.audit.chain import Chain, ChainHead, ChainRow
from gateway.audit.entries import AuditOrigin
from gateway.audit.signing_keys import SigningKey
from gateway.audit.verification import verify

pytestmark = pytest.mark.anyio

KEY = SigningKey.generate()
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Log:
    """A chain that grows on request."""

    def __init__(self, shard: str = "a") -> None:
        self._chain = Chain(shard)
        self.rows: list[ChainRow] = []
        self.ticks = 0

    def open(self) -> None:
        self.rows.append(self._chain.open(AuditOrigin("node", "c1", "p1"), at=1))

    def grow(self, entries: int) -> None:
        for _ in range(entries):
            self.rows += self._chain.append([(2, b'{"at":2,"event":"gateway-started","place":{"node":"n"},"v":1}')])

    def head(self) -> ChainHead:
        return self._chain.head


class AppendedRows(list[ChainRow]):
    """Rows in the order in which they were appended, ready to be verified."""

    def statements(self) -> Iterator[ChainRow]:
        return iter(self)


class Sink:
    """Stores lines unless it is broken; can hang until released, and stores a line even if it does not confirm it."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.is_broken = False
        self.is_unconfirmed = False
        self.entered = threading.Event()
        self.hangs = threading.Event()
        self.hangs.set()
        self.attempts = 0

    def write(self, line: bytes) -> None:
        self.attempts += 1
        self.entered.set()
        self.hangs.wait()
        if self.is_broken:
            raise AnchorWriteFailed("the anchor could not be written to /mnt/a (No space left on device)")
        self.lines.append(line)
        if self.is_unconfirmed:
            raise AnchorWriteFailed

    @property
    def anchors(self) -> list[SignedAnchor]:
        found = [parse_anchor(line.rstrip(b"\n"), number) for number, line in enumerate(self.lines)]
        return [each for each in found if isinstance(each, SignedAnchor)]


TERMS = AnchorPolicy(Path("/nowhere/anchors.jsonl"), KEY, timedelta(seconds=60), 10)


def make_writer(log: Log, sink: Sink, *, patience: float = 5.0) -> AnchorWriter:
    return AnchorWriter(
        TERMS,
        log.head,
        sink=sink,
        anchored=lambda shard: 0,
        clock=lambda: NOON,
        ticks=lambda: log.ticks,
        patience=patience,
    )


@contextmanager
def open_log() -> Iterator[tuple[Log, Sink]]:
    log, sink = Log(), Sink()
    log.open()
    yield log, sink
    sink.hangs.set()


async def test_first_look_writes_an_anchor_and_the_next_waits_for_time_or_entries() -> None:
    with open_log() as (log, sink):
        task = make_writer(log, sink)
        reached = []
        for fresh, seconds in ((0, 0), (1, 0), (0, 59), (0, 1), (0, 500), (9, 0), (1, 0)):
            log.grow(fresh)
            log.ticks += seconds * 10**9
            await task.write_if_due()
            reached.append((log.head().seq, task.status()["anchored"]))

    assert reached == [(1, 1), (2, 1), (2, 1), (2, 2), (2, 2), (11, 2), (12, 12)]
    assert len(sink.lines) == 3
    assert task.status() == {
        "key": KEY.id,
        "anchored": 12,
        "anchoredAt": "2026-05-01T12:00:00+00:00",
        "unanchored": 0,
        "problem": None,
    }


async def test_log_without_an_entry_has_no_anchor() -> None:
    log, sink = Log(), Sink()
    task = make_writer(log, sink)

    await task.write_if_due()
    empty = task.status()
    log.open()
    await task.write_if_due()

    assert (empty["anchored"], empty["anchoredAt"]) == (0, None)
    assert len(sink.lines) == 1


async def test_start_and_end_write_one_each() -> None:
    with open_log() as (log, sink):
        task = make_writer(log, sink)

        task.start()
        await asyncio.to_thread(sink.entered.wait)
        log.grow(4)
        await task.close()

    assert [each.anchor.seq for each in sink.anchors] == [1, 5]
    assert verify(AppendedRows(log.rows), anchors=sink.anchors, keys=[KEY.public]).is_good


async def test_process_that_goes_on_with_a_shard_goes_on_with_its_anchors(tmp_path: Path) -> None:
    log = Log()
    log.open()
    terms = AnchorPolicy(tmp_path / "anchors.jsonl", KEY, timedelta(hours=1), 1000)
    await AnchorWriter(terms, log.head).close()
    log.grow(2)

    await AnchorWriter(terms, log.head).close()
    await AnchorWriter(terms, log.head).close()

    found = [each.anchor for each in read_anchors(terms.path) if isinstance(each, SignedAnchor)]
    assert [(each.seq, each.count) for each in found] == [(1, 1), (3, 2)]


async def test_another_shard_begins_its_own_anchors() -> None:
    with open_log() as (log, sink):
        other = Log("b")
        other.open()
        heads = [log.head(), other.head()]
        task = AnchorWriter(TERMS, lambda: heads[0], sink=sink, anchored=lambda shard: 0)
        await task.write_if_due()
        del heads[0]
        await task.write_if_due()

    assert [b'"shard":"a"' in sink.lines[0], b'"shard":"b"' in sink.lines[1]] == [True, True]


async def test_outage_is_logged_once_retried_and_reported_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    with open_log() as (log, sink), caplog.at_level(logging.WARNING):
        task = make_writer(log, sink)
        sink.is_broken = True
        for _ in range(3):
            await task.write_if_due()
        problem, attempts = task.status()["problem"], sink.attempts
        sink.is_broken = False
        log.grow(1)
        await task.write_if_due()

    assert problem == "the anchor could not be written to /mnt/a (No space left on device)"
    assert attempts == 3
    assert (task.problem, task.status()["anchored"]) == (None, 2)
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("ERROR", f"no anchor of the decision log can be written: {problem}"),
        ("WARNING", "anchors of the decision log are written again"),
    ]


async def test_anchors_that_retries_repeat_are_no_sign_of_tampering() -> None:
    with open_log() as (log, sink):
        task = make_writer(log, sink)
        sink.is_unconfirmed = True
        await task.write_if_due()
        sink.is_unconfirmed = False
        log.grow(2)
        await task.write_if_due()

    assert [each.anchor.seq for each in sink.anchors] == [1, 3]
    assert verify(AppendedRows(log.rows), anchors=sink.anchors, keys=[KEY.public]).is_good


async def test_file_system_that_hangs_is_reported_and_holds_up_neither_calls_nor_the_end() -> None:
    with open_log() as (log, sink):
        task = make_writer(log, sink, patience=0.0)
        sink.hangs.clear()
        task.start()
        await asyncio.to_thread(sink.entered.wait)
        while task.problem is None:
            await asyncio.sleep(0)
        await task.write_if_due()

        meanwhile = task.problem
        await task.close()

        assert (meanwhile, task.problem) == ("the file system does not answer", meanwhile)
        assert sink.attempts == 1


async def test_last_anchor_that_hangs_does_not_hold_up_the_end() -> None:
    with open_log() as (log, sink):
        task = make_writer(log, sink, patience=0.0)
        sink.hangs.clear()

        await task.close()

        assert task.problem == "the file system does not answer"


async def test_whatever_else_goes_wrong_is_reported_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with open_log() as (log, sink):
        failures: list[Exception] = [ZeroDivisionError("x"), OSError(13, "Permission denied")]

        def anchored(shard: str) -> int:
            if failures:
                raise failures.pop(0)
            return 0

        task = AnchorWriter(TERMS, log.head, sink=sink, anchored=anchored)
        problems = []
        for _ in range(3):
            await task.write_if_due()
            problems.append(task.problem)

    assert problems == [
        "an anchor could not be created (ZeroDivisionError)",
        "the anchors cannot be read (Permission denied)",
        None,
    ]
    assert "ZeroDivisionError" in caplog.text


async def test_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    log = Log()
    log.open()
    task = AnchorWriter(AnchorPolicy(tmp_path / "gone" / "a.jsonl", KEY, timedelta(hours=1), 9), log.head)

    await task.write_if_due()

    assert task.problem == f"the anchor could not be written to {tmp_path}/gone/a.jsonl (No such file or directory)"
