"""The log of a running gateway: keys that are refused, and anchors at the start, from time to time and at the end."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.audit.anchors import AnchorNotKept, SignedAnchor, parsed, read_anchors
from gateway.audit.chain import Chain, Head, Row
from gateway.audit.contents import ContentKey
from gateway.audit.entries import Place
from gateway.audit.keys import SigningKey
from gateway.audit.secret_bytes import WeakKey
from gateway.audit.verifying import verify
from gateway.config.specs.audit import Audit
from gateway.runtime.auditing import Anchoring, AnchorTerms, auditing_of, content_key
from gateway.runtime.secrets import SecretMissing, Secrets

pytestmark = pytest.mark.anyio

KEY = SigningKey.generate()
HEX = "0123456789abcdeffedcba98765432100f1e2d3c4b5a69788796a5b4c3d2e1f0"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
EMPTY = Audit.model_validate({})
AUDIT = Audit.model_validate(
    {
        "key": {"fromEnv": "CONTENTS"},
        "anchors": {
            "path": "/mnt/anchors.jsonl",
            "signingKey": {"fromEnv": "ANCHORS"},
            "every": "30s",
            "entries": 3,
        },
    }
)


def secrets(tmp_path: Path, **environ: str) -> Secrets:
    return Secrets({"CONTENTS": HEX, "ANCHORS": KEY.pem().decode(), **environ}, tmp_path)


# --- keys ---


def test_document_and_secrets_make_keys_and_terms(tmp_path: Path) -> None:
    found = auditing_of(AUDIT, secrets(tmp_path))

    assert found.key.id == ContentKey(HEX).id
    assert found.anchors is not None
    assert (found.anchors.path, found.anchors.key.id) == (Path("/mnt/anchors.jsonl"), KEY.id)
    assert (found.anchors.every, found.anchors.entries) == (timedelta(seconds=30), 3)
    assert found.warnings == ()
    assert HEX not in repr(found)


def test_without_a_key_each_process_makes_one_up_and_says_so(tmp_path: Path) -> None:
    ids = {content_key(audit, secrets(tmp_path)).id for audit in (None, None, EMPTY)}
    found = auditing_of(None, secrets(tmp_path))

    assert len(ids) == 3
    assert found.anchors is None
    assert found.warnings == (
        "the Gateway names no audit.key: hashes in the log cannot be compared across restarts",
        "the Gateway names no audit.anchors: a log that was cut off or written anew is not noticed",
    )


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        pytest.param({"CONTENTS": "ab" * 16}, "audit.key of the Gateway: the key of contents has 16 bytes", id="short"),
        pytest.param({"CONTENTS": "hunter2 hunter2"}, "audit.key of the Gateway: the key of contents is a", id="words"),
        pytest.param({"CONTENTS": "00" * 32}, "audit.key of the Gateway: the key of contents repeats", id="zeros"),
        pytest.param(
            {"ANCHORS": "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"},
            "audit.anchors.signingKey of the Gateway: the private key cannot be read",
            id="no-pem",
        ),
        pytest.param({"ANCHORS": "hunter2"}, "audit.anchors.signingKey of the Gateway: the key of", id="no-key"),
    ],
)
def test_weak_key_is_refused_by_the_name_of_its_field(tmp_path: Path, environ: dict[str, str], message: str) -> None:
    with pytest.raises(WeakKey) as refused:
        auditing_of(AUDIT, secrets(tmp_path, **environ))

    assert refused.value.message.startswith(message)
    assert "gateway audit keygen" in (refused.value.help or "")
    assert "hunter2" not in f"{refused.value.message} {refused.value.help} {refused.value.__cause__}"


@pytest.mark.parametrize("missing", ["CONTENTS", "ANCHORS"])
def test_missing_key_is_refused(tmp_path: Path, missing: str) -> None:
    with pytest.raises(SecretMissing, match=missing):
        auditing_of(AUDIT, secrets(tmp_path, **{missing: ""}))


# --- anchors ---


class Log:
    """A chain that grows when it is told to."""

    def __init__(self, shard: str = "a") -> None:
        self._chain = Chain(shard)
        self.rows: list[Row] = []
        self.ticks = 0

    def open(self) -> None:
        self.rows.append(self._chain.open(Place("node", "c1", "p1"), at=1))

    def grow(self, entries: int) -> None:
        for _ in range(entries):
            self.rows += self._chain.append([(2, b'{"at":2,"event":"gateway-started","place":{"node":"n"},"v":1}')])

    def head(self) -> Head:
        return self._chain.head


class Kept(list[Row]):
    """Rows as they were appended, to be verified."""

    def statements(self) -> Iterator[Row]:
        return iter(self)


class Sink:
    """Keeps lines unless it is broken, or hangs until it is let go; an unconfirmed line is kept all the same."""

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
            raise AnchorNotKept("the anchor could not be written to /mnt/a (No space left on device)")
        self.lines.append(line)
        if self.is_unconfirmed:
            raise AnchorNotKept

    @property
    def anchors(self) -> list[SignedAnchor]:
        found = [parsed(line.rstrip(b"\n"), number) for number, line in enumerate(self.lines)]
        return [each for each in found if isinstance(each, SignedAnchor)]


TERMS = AnchorTerms(Path("/nowhere/anchors.jsonl"), KEY, timedelta(seconds=60), 10)


def anchoring(log: Log, sink: Sink, *, patience: float = 5.0) -> Anchoring:
    return Anchoring(
        TERMS,
        log.head,
        sink=sink,
        anchored=lambda shard: 0,
        clock=lambda: NOON,
        ticks=lambda: log.ticks,
        patience=patience,
    )


@contextmanager
def opened() -> Iterator[tuple[Log, Sink]]:
    log, sink = Log(), Sink()
    log.open()
    yield log, sink
    sink.hangs.set()


async def test_first_look_writes_an_anchor_and_the_next_waits_for_time_or_entries() -> None:
    with opened() as (log, sink):
        task = anchoring(log, sink)
        reached = []
        for fresh, seconds in ((0, 0), (1, 0), (0, 59), (0, 1), (0, 500), (9, 0), (1, 0)):
            log.grow(fresh)
            log.ticks += seconds * 10**9
            await task.look()
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
    task = anchoring(log, sink)

    await task.look()
    empty = task.status()
    log.open()
    await task.look()

    assert (empty["anchored"], empty["anchoredAt"]) == (0, None)
    assert len(sink.lines) == 1


async def test_start_and_end_write_one_each() -> None:
    with opened() as (log, sink):
        task = anchoring(log, sink)

        task.start()
        await asyncio.to_thread(sink.entered.wait)
        log.grow(4)
        await task.close()

    assert [each.anchor.seq for each in sink.anchors] == [1, 5]
    assert verify(Kept(log.rows), anchors=sink.anchors, keys=[KEY.public]).is_good


async def test_process_that_goes_on_with_a_shard_goes_on_with_its_anchors(tmp_path: Path) -> None:
    log = Log()
    log.open()
    terms = AnchorTerms(tmp_path / "anchors.jsonl", KEY, timedelta(hours=1), 1000)
    await Anchoring(terms, log.head).close()
    log.grow(2)

    await Anchoring(terms, log.head).close()
    await Anchoring(terms, log.head).close()

    found = [each.anchor for each in read_anchors(terms.path) if isinstance(each, SignedAnchor)]
    assert [(each.seq, each.count) for each in found] == [(1, 1), (3, 2)]


async def test_another_shard_begins_its_own_anchors() -> None:
    with opened() as (log, sink):
        other = Log("b")
        other.open()
        heads = [log.head(), other.head()]
        task = Anchoring(TERMS, lambda: heads[0], sink=sink, anchored=lambda shard: 0)
        await task.look()
        del heads[0]
        await task.look()

    assert [b'"shard":"a"' in sink.lines[0], b'"shard":"b"' in sink.lines[1]] == [True, True]


async def test_outage_is_logged_once_retried_and_told_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    with opened() as (log, sink), caplog.at_level(logging.WARNING):
        task = anchoring(log, sink)
        sink.is_broken = True
        for _ in range(3):
            await task.look()
        problem, attempts = task.status()["problem"], sink.attempts
        sink.is_broken = False
        log.grow(1)
        await task.look()

    assert problem == "the anchor could not be written to /mnt/a (No space left on device)"
    assert attempts == 3
    assert (task.problem, task.status()["anchored"]) == (None, 2)
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("ERROR", f"no anchor of the decision log can be written: {problem}"),
        ("WARNING", "anchors of the decision log are written again"),
    ]


async def test_anchors_that_retries_repeat_are_no_sign_of_tampering() -> None:
    with opened() as (log, sink):
        task = anchoring(log, sink)
        sink.is_unconfirmed = True
        await task.look()
        sink.is_unconfirmed = False
        log.grow(2)
        await task.look()

    assert [each.anchor.seq for each in sink.anchors] == [1, 3]
    assert verify(Kept(log.rows), anchors=sink.anchors, keys=[KEY.public]).is_good


async def test_file_system_that_hangs_is_told_of_and_holds_up_neither_calls_nor_the_end() -> None:
    with opened() as (log, sink):
        task = anchoring(log, sink, patience=0.0)
        sink.hangs.clear()
        task.start()
        await asyncio.to_thread(sink.entered.wait)
        while task.problem is None:
            await asyncio.sleep(0)
        await task.look()

        meanwhile = task.problem
        await task.close()

        assert (meanwhile, task.problem) == ("the file system does not answer", meanwhile)
        assert sink.attempts == 1


async def test_last_anchor_that_hangs_does_not_hold_up_the_end() -> None:
    with opened() as (log, sink):
        task = anchoring(log, sink, patience=0.0)
        sink.hangs.clear()

        await task.close()

        assert task.problem == "the file system does not answer"


async def test_whatever_else_goes_wrong_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with opened() as (log, sink):
        failures: list[Exception] = [ZeroDivisionError("x"), OSError(13, "Permission denied")]

        def anchored(shard: str) -> int:
            if failures:
                raise failures.pop(0)
            return 0

        task = Anchoring(TERMS, log.head, sink=sink, anchored=anchored)
        told = []
        for _ in range(3):
            await task.look()
            told.append(task.problem)

    assert told == [
        "an anchor could not be made (ZeroDivisionError)",
        "the anchors cannot be read (Permission denied)",
        None,
    ]
    assert "ZeroDivisionError" in caplog.text


async def test_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    log = Log()
    log.open()
    task = Anchoring(AnchorTerms(tmp_path / "gone" / "a.jsonl", KEY, timedelta(hours=1), 9), log.head)

    await task.look()

    assert task.problem == f"the anchor could not be written to {tmp_path}/gone/a.jsonl (No such file or directory)"
