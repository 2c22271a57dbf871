"""The decision log in a database, read from outside."""

import sqlite3
from pathlib import Path

import pytest

from gateway.audit.entries import AuditEntry
from gateway.audit.json_lines import InvalidEntry
from gateway.audit.verification import verify
from gateway.errors import StoreUnavailable
from gateway.storage.sql.read_only.read_only_store import SqliteAuditReader
from tests.audit.sample_logs import KEY, NOON, PLACE, log, mark, sign_anchors, write_table

ALPHA = log("alpha", more=[AuditEntry("key-rotated", NOON, PLACE, key=KEY.endorse(KEY.public))])
BETA = log("beta", 3, after=[mark(ALPHA[-1])], more=[AuditEntry("log-pruned", NOON, PLACE, pruned=mark(ALPHA[1]))])


def test_rows_come_shard_by_shard_in_order(tmp_path: Path) -> None:
    path = write_table(tmp_path / "gateway.db", [*reversed(BETA), *ALPHA])

    with SqliteAuditReader(path) as rows:
        assert rows.fraction() == 0
        assert list(rows) == [*ALPHA, *BETA]
        assert rows.fraction() == 1
        assert [(row.shard, row.seq) for row in rows.statements()] == [
            ("alpha", 1),
            ("alpha", 9),
            ("beta", 1),
            ("beta", 4),
        ]
        assert verify(rows, anchors=sign_anchors(ALPHA[-1], BETA[-1]), keys=[KEY.public]).is_good


def test_log_is_read_as_of_one_moment(tmp_path: Path) -> None:
    path = write_table(tmp_path / "gateway.db", ALPHA[:5])
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    with SqliteAuditReader(path) as rows:
        writer.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?)", ALPHA[5])
        writer.commit()

        assert verify(rows).entries == 5
    with SqliteAuditReader(path) as rows:
        assert verify(rows).entries == 6
    writer.close()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("UPDATE audit SET hash = 'text' WHERE seq = 3", id="text-for-bytes"),
        pytest.param("UPDATE audit SET prev = x'00' WHERE seq = 3", id="short"),
        pytest.param("UPDATE audit SET at = 'noon' WHERE seq = 3", id="moment"),
        pytest.param("UPDATE audit SET shard = 'alpha' || char(10) WHERE seq = 3", id="name"),
        pytest.param("UPDATE audit SET shard = CAST(x'ff' AS TEXT) WHERE seq = 1", id="no-text"),
        pytest.param("UPDATE audit SET seq = -3 WHERE seq = 3", id="number"),
    ],
)
def test_row_that_is_none_is_reported(tmp_path: Path, change: str) -> None:
    path = write_table(tmp_path / "gateway.db", ALPHA)
    connection = sqlite3.connect(path)
    connection.execute(change)
    connection.commit()
    connection.close()

    with SqliteAuditReader(path) as rows:
        assert verify(rows).findings
        with pytest.raises(InvalidEntry, match="no entry of a decision log"):
            list(rows)


def test_nothing_is_written(tmp_path: Path) -> None:
    path = write_table(tmp_path / "gateway.db", ALPHA)

    with SqliteAuditReader(path) as rows, pytest.raises(sqlite3.OperationalError, match="readonly"):
        rows._connection.execute("DELETE FROM audit")


@pytest.mark.parametrize("content", [b"", b"hello " * 1000, None], ids=["empty", "other", "absent"])
def test_file_without_a_log_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "gateway.db"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(StoreUnavailable) as refused:
        SqliteAuditReader(path)

    assert refused.value.help


def test_no_log_is_no_fraction(tmp_path: Path) -> None:
    with SqliteAuditReader(write_table(tmp_path / "gateway.db", [])) as rows:
        assert (list(rows), rows.fraction()) == ([], 0.0)
