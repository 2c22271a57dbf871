"""Two processes do the same at the same moment: start on a third one's remains, recover, sweep, write a state file.

Each finds what the other has done; neither fails, and nothing is done twice.
"""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.app.project_source import NUMBERS
from gateway.audit.anchors import InvalidAnchorLine, read_anchors
from gateway.audit.chain import ChainRow
from gateway.audit.entries import AuditEntry, AuditOrigin
from gateway.audit.verification import verify
from gateway.storage.blobs.disk_store import DiskSpool
from gateway.storage.call_store import CallFilter, StoredResult
from gateway.storage.sql.approvals import SqlApprovalStore
from gateway.storage.sql.sqlite.database_setup import list_schema_versions, migrate_sqlite, read_schema_version
from tests.storage import simultaneous as steps
from tests.storage.sample_records import NOON, call, settled, turn
from tests.storage.simultaneous import Pair, opened
from tests.storage.sql.test_approvals import approval
from tests.support.servers.postgres_server import PostgresServer

DEAD = 4
FILES = 40
LARGE = 300_000


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair() as pair:
        yield pair


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "gateway.db")
    address: str = request.getfixturevalue("new_database")()
    return address


# Starting


def leave_parts(root: Path) -> None:
    """Leave what processes leave that are killed while they write results."""
    for _ in range(DEAD):
        id = uuid4().hex
        folder = root / "incoming" / id
        folder.mkdir(parents=True)
        for number in range(FILES):
            (folder / f"{number:032x}").touch()
        (root / "processes").mkdir(exist_ok=True)
        (root / "processes" / id).touch()


def test_spool_is_opened_on_what_killed_processes_left(pair: Pair, tmp_path: Path) -> None:
    for _ in range(15):
        leave_parts(tmp_path)

        pair.both(steps.open_spool, tmp_path)

        assert list((tmp_path / "incoming").iterdir()) == []
        assert list((tmp_path / "processes").iterdir()) == []


def test_spool_is_made_by_the_first_start(pair: Pair, tmp_path: Path) -> None:
    for number in range(15):
        pair.both(steps.open_spool, tmp_path / f"{number}" / "data" / "blobs")


def test_database_is_made_by_the_first_start(pair: Pair, tmp_path: Path) -> None:
    for number in range(8):
        path = tmp_path / f"{number}" / "data" / "gateway.db"

        pair.both(steps.open_database, path)

        with closing(sqlite3.connect(path)) as connection:
            assert read_schema_version(connection) == list_schema_versions()[-1]


@pytest.mark.parametrize("before", list_schema_versions()[3:-1])
def test_database_of_an_earlier_version_is_upgraded_once(pair: Pair, tmp_path: Path, before: str) -> None:
    for number in range(3):
        path = tmp_path / f"{number}.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            migrate_sqlite(connection, to=before)

        pair.both(steps.open_database, path)

        with closing(sqlite3.connect(path)) as connection:
            assert read_schema_version(connection) == list_schema_versions()[-1]


def test_postgres_database_is_set_up_once(pair: Pair, postgres: PostgresServer) -> None:
    for _ in range(2):
        assert pair.both(steps.migrate_database, postgres.database()) == [list_schema_versions()[-1]] * 2


def test_process_keeps_its_place_while_another_sweeps(pair: Pair, tmp_path: Path) -> None:
    for _ in range(60):
        assert pair.both(steps.take_a_place, tmp_path / "processes") == [True, True]


def test_table_of_rates_is_made_once(pair: Pair, tmp_path: Path) -> None:
    for number in range(30):
        database = tmp_path / f"{number}.db"
        database.touch()

        assert sorted(pair.both(steps.take_one, database)) == [False, True]


# Recovering and sweeping


def entries_of(where: str, event: str) -> list[str]:
    async def found() -> list[str]:
        store = await opened(where)
        rows = await store.reader.run(lambda it: it.execute("SELECT body FROM audit").fetchall())
        await store.close()
        bodies = [json.loads(bytes(body)) for [body] in rows]
        return sorted(each["place"]["node"] for each in bodies if each["event"] == event)

    return asyncio.run(found())


def test_calls_of_a_dead_process_are_recovered_once(pair: Pair, where: str) -> None:
    async def leave(number: int) -> None:
        store = await opened(where)
        for index in range(20):
            id = f"{number}-{index}"
            await store.start_call(call(id, f"turn-{id}"), turn=turn(f"turn-{id}"))
        await store.close()

    for number in range(4):
        asyncio.run(leave(number))

        assert sum(pair.both(steps.recover, where)) == 20

    assert entries_of(where, "call-unknown") == sorted(
        f"{number}-{index}" for number in range(4) for index in range(20)
    )


def test_what_is_past_its_end_is_swept_by_both(pair: Pair, where: str, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"

    async def leave(number: int) -> None:
        store = await opened(where)
        spool = await DiskSpool.open(blobs, small=store)
        for index in range(30):
            id = f"{number}-{index}"
            own = turn(f"turn-{id}")
            reader = await spool.for_turn(own.id, tenant="acme").write(id, bytes(LARGE))
            piece = StoredResult("artifact", key=reader.key, content=reader.content, byte_length=reader.byte_length())
            await store.record_call(settled(id, own.id, results=(piece,)), turn=own)
            await spool.for_turn(f"stray-{id}", tenant="acme").write(id, bytes(LARGE))
        await spool.close()
        await store.close()

    async def left() -> int:
        store = await opened(where)
        found, _ = await store.list_calls(CallFilter(), limit=500)
        await store.close()
        return len(found)

    for number in range(3):
        asyncio.run(leave(number))

        assert sum(pair.both(steps.sweep, where, blobs)) == 30

        assert asyncio.run(left()) == 0
        assert list(blobs.rglob("*.bytes")) == []


def test_old_entries_of_the_log_are_removed_by_both(pair: Pair, where: str) -> None:
    hour = 3_600_000_000

    async def write(at: int) -> None:
        store = await opened(where, now=at)
        await store.note([(at, AuditEntry("gateway-started", at, AuditOrigin("gw")).encode()) for _ in range(50)])
        await store.close()

    async def rows() -> list[ChainRow]:
        store = await opened(where)
        text = "SELECT shard, seq, prev, hash, body, at FROM audit ORDER BY shard, seq"
        found = await store.reader.run(lambda it: it.execute(text).fetchall())
        await store.close()
        return [ChainRow(*row) for row in found]

    class Kept(list[ChainRow]):
        def statements(self) -> Iterator[ChainRow]:
            return iter(self)

    for number in range(1, 5):
        now = (1_000 + 10 * number) * hour
        asyncio.run(write(now - 2 * hour))

        pair.both(steps.shorten, where, now)

        kept = asyncio.run(rows())
        assert [row.at for row in kept if row.at is not None and row.at < now - hour] == []
        report = verify(Kept(kept))
        assert report.is_good, report.findings


def test_approvals_that_are_overdue_expire_once(pair: Pair, where: str) -> None:
    async def ask(number: int) -> list[str]:
        store = await opened(where)
        asked = [approval(f"{number}-{index}", expires_at=NOON + timedelta(minutes=1)) for index in range(20)]
        await SqlApprovalStore(store.writer, store.reader).transact(lambda table: [table.add(each) for each in asked])
        await store.close()
        return [each.id for each in asked]

    for number in range(3):
        asked = asyncio.run(ask(number))

        one, other = pair.both(steps.expire_approvals, where)

        assert sorted(one + other) == sorted(asked)


def test_results_of_one_turn_are_written_and_deleted(pair: Pair, tmp_path: Path) -> None:
    pair.both(steps.write_and_delete, tmp_path, 300)

    assert list(tmp_path.rglob("*.bytes")) == []


def test_results_of_one_id_are_written_and_deleted(pair: Pair, tmp_path: Path) -> None:
    pair.both(steps.write_and_delete_id, tmp_path, 300)

    assert list((tmp_path / "incoming").iterdir()) == []


# State files


def test_anchors_are_appended_behind_a_line_that_was_cut_off(pair: Pair, tmp_path: Path) -> None:
    line = (  # hash and signature are not checked here
        b'{"anchor":{"at":1,"count":1,"hash":"%b","key":"%b","seq":%d,"shard":"s"},"signature":"%b=="}\n'
    )
    for number in range(40):
        path = tmp_path / f"{number}"
        path.write_bytes(b'{"anchor":{"at":17')
        lines = [line % (b"0" * 64, b"1" * 16, seq, b"A" * 86) for seq in (1, 2)]

        pair.both(steps.append_anchors, path, lines)

        found = list(read_anchors(path))
        assert [each for each in found if isinstance(each, InvalidAnchorLine)] == [
            InvalidAnchorLine(1, is_cut_off=True)
        ]
        assert len(found) == 5


def test_number_of_the_latest_bundle_stays(pair: Pair, tmp_path: Path) -> None:
    for number in range(1, 400, 2):
        pair.both(steps.use_bundle, tmp_path / "state", number)

        assert json.loads((tmp_path / "state" / NUMBERS).read_bytes())["number"] == number + 1


def test_last_good_revision_is_one_of_both(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "state" / "last-good.tar"
    for number in range(30):
        content = b"%d" % number * 5_000

        pair.both(steps.write_content, path, content)

        assert path.read_bytes() in (content, content * 2)
        assert list(path.parent.iterdir()) == [path]


def test_keys_are_made_once(pair: Pair, tmp_path: Path) -> None:
    for number in range(30):
        folder = tmp_path / f"{number}"
        folder.mkdir()

        written = pair.both(steps.write_keys, folder)

        assert sorted(written) == [False, True]
        winner = b"%d" % written.index(True)
        assert ((folder / "key").read_bytes(), (folder / "key.pub").read_bytes()) == (winner, winner)
