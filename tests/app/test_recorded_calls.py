"""Recorded calls as replays read them: from SQLite and PostgreSQL, while a gateway runs, and of older versions."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.app.recorded_calls import read_recorded_calls
from gateway.app.recorded_entries import InvalidExport, open_exported_calls, to_recorded_entry
from gateway.errors import GatewayError, UnknownTool
from gateway.model.caller import Credential, Principal
from gateway.review.replay.recorded_calls import EVERY_CALL, CallSelection, RecordedCall
from gateway.review.replay.replay import replay_calls
from gateway.storage.sql.postgres.connection import open_read_only_session
from gateway.storage.sql.postgres.database_setup import import_sqlite
from gateway.storage.sql.read_only_store import RemoteStore
from tests.review.replay.every_rule import NOBODY_ASKS, POLICY, load, serving, write_every_rule

ANA = Principal("user:ana", frozenset({"role:agent"}), "acme", credential=Credential("token", "tests", "one"))
BIG = {"text": "a", "amount": 501, "kind": "big"}
Made = tuple[str, dict[str, Any]]


def read_all(place: Any, selection: CallSelection = EVERY_CALL, *, looks_back: bool = True) -> list[RecordedCall]:
    with read_recorded_calls(place, selection, looks_back=looks_back) as history:
        return list(history)


async def record(folder: Path, *calls: Made, replay: dict[str, Any] | None = None) -> Path:
    """Serve the project, make these calls without a turn, and return the database."""
    project = write_every_rule(folder / "p", replay=replay)
    async with serving(project, folder / "data") as callers:
        for tool, arguments in calls:
            await callers.app.service.call_tool(ANA, "desk", tool, arguments, holding=NOBODY_ASKS)
    return folder / "data" / "gateway.db"


def test_call_that_ran_has_every_fact(tmp_path: Path) -> None:
    [call] = read_all(asyncio.run(record(tmp_path, ("budget", {"text": "a"}))))

    assert (call.tool, call.principal, call.catalogue) == ("budget", ANA, "desk")
    assert (call.decision, call.reason, call.rules) == ("allow", "rule-allowed", ())
    assert call.arguments == {"text": "a"}
    assert (call.size, call.artifact) == (3, "text")
    assert call.turn is not None
    assert call.implicit is not None
    assert call.ended is not None
    assert call.at <= call.ended
    assert call.fingerprint


def test_refusal_names_its_rule_and_place(tmp_path: Path) -> None:
    calls = (("small_amounts", BIG), ("denied", {"text": "a"}), ("approved", BIG))
    denied, by_row, held = read_all(asyncio.run(record(tmp_path, *calls)))

    assert (denied.reason, denied.rules) == ("rule-denied", ("small_amounts",))
    assert denied.position is not None
    assert denied.position.partition(":")[0].endswith("configs/all.yaml")
    assert (by_row.reason, by_row.rules) == ("not-permitted", ())
    assert by_row.position is not None
    assert by_row.position.endswith("policies/policy.csv:3")
    assert (held.reason, held.rules, held.was_held) == ("approval-pending", ("approved",), True)


STORED: list[tuple[dict[str, Any] | None, dict[str, Any] | None, set[str]]] = [
    (None, None, set()),
    ({"arguments": "none"}, None, set()),
    ({"arguments": "values"}, BIG, set()),
    ({"arguments": "masked"}, {"amount": 501, "kind": "big"}, {"text"}),
    ({"arguments": "values", "tools": ["small_*"]}, BIG, set()),
    ({"arguments": "values", "tools": ["other"]}, None, set()),
    ({"arguments": "values", "artifacts": ["page"]}, None, set()),
    ({"arguments": "values", "tools": ["other"], "artifacts": ["text"]}, BIG, set()),
]


@pytest.mark.parametrize(("replay", "arguments", "masked"), STORED)
def test_arguments_of_refused_calls_are_stored_as_the_storage_says(
    tmp_path: Path, replay: dict[str, Any] | None, arguments: dict[str, Any] | None, masked: set[str]
) -> None:
    [call] = read_all(asyncio.run(record(tmp_path, ("small_amounts", BIG), replay=replay)))

    assert (call.arguments, set(call.masked)) == (arguments, masked)


def test_arguments_that_look_like_secrets_are_never_stored(tmp_path: Path) -> None:
    wrong = {"text": "a", "password": "hunter2"}
    database = asyncio.run(record(tmp_path, ("plain", wrong), replay={"arguments": "values"}))
    [call] = read_all(database)

    assert (call.reason, call.arguments, set(call.masked)) == ("arguments-invalid", {"text": "a"}, {"password"})
    assert b"hunter2" not in database.read_bytes()


def test_large_arguments_are_not_stored(tmp_path: Path) -> None:
    [call] = read_all(asyncio.run(record(tmp_path, ("plain", {"text": "x" * 70_000}), replay={"arguments": "values"})))

    assert (call.reason, call.arguments) == ("arguments-invalid", None)


def test_order_is_that_of_decisions_and_the_period_limits_it(tmp_path: Path) -> None:
    database = asyncio.run(record(tmp_path, *(("plain", {"text": str(number)}) for number in range(5))))
    found = read_all(database)
    since = CallSelection(since=found[3].at)

    assert [each.at for each in found] == sorted(each.at for each in found)
    assert [each.id for each in read_all(database, since, looks_back=False)] == [each.id for each in found[3:]]
    assert len(read_all(database, since, looks_back=True)) == 5


def test_store_is_read_while_a_gateway_runs(tmp_path: Path) -> None:
    async def serve() -> list[RecordedCall]:
        async with serving(write_every_rule(tmp_path / "p"), tmp_path / "data") as callers:
            await callers.app.service.call_tool(ANA, "desk", "plain", {"text": "a"})
            return await asyncio.to_thread(read_all, tmp_path / "data" / "gateway.db")

    assert [each.tool for each in asyncio.run(serve())] == ["plain"]


def test_tools_that_do_not_exist_for_a_caller_come_from_the_log(tmp_path: Path) -> None:
    async def serve() -> None:
        async with serving(write_every_rule(tmp_path / "p"), tmp_path / "data") as callers:
            with pytest.raises(UnknownTool):
                await callers.app.service.call_tool(ANA, "desk", "hidden", {"text": "a"})

    asyncio.run(serve())
    [call] = read_all(tmp_path / "data" / "gateway.db")

    assert (call.tool, call.decision, call.reason, call.arguments) == ("hidden", "deny", "unknown-tool", None)


def test_read_of_a_result_makes_the_state_of_its_reader_unknown(tmp_path: Path) -> None:
    """The log does not say which result it was: rules about the turn cannot be replayed afterwards."""
    project = write_every_rule(tmp_path / "p")

    async def serve() -> None:
        async with serving(project, tmp_path / "data") as callers:
            service = callers.app.service
            fetched = await service.call_tool(ANA, "other", "fetch", {"text": "a"})
            await service.call_tool(ANA, "desk", "plain", {"text": "a"})
            stored = await service.get_stored_call(ANA, fetched.record.id)
            await service.read(ANA, stored)
            await service.call_tool(ANA, "other", "tainted", {"text": "a"})

    asyncio.run(serve())
    access = load(project).access
    assert access is not None
    with read_recorded_calls(tmp_path / "data" / "gateway.db", EVERY_CALL, looks_back=True) as history:
        result = replay_calls(history, access)

    assert [(each.obstacle, each.calls) for each in result.unreplayed] == [("turn", 1)]
    assert result.groups == ()


def test_refusals_that_were_only_counted_are_counted(tmp_path: Path) -> None:
    async def serve() -> None:
        async with serving(write_every_rule(tmp_path / "p"), tmp_path / "data", max_refusals=2) as callers:
            for _ in range(5):
                await callers.app.service.call_tool(ANA, "desk", "denied", {"text": "a"})

    asyncio.run(serve())
    database = tmp_path / "data" / "gateway.db"
    with read_recorded_calls(database, EVERY_CALL, looks_back=True) as history:
        assert (len(list(history)), history.unrecorded) == (2, 3)
    of_others = CallSelection(callers=frozenset({"user:eve"}))
    with read_recorded_calls(database, of_others, looks_back=True) as history:
        assert history.unrecorded == 0


def test_older_rows_are_replayed_as_far_as_they_go(tmp_path: Path) -> None:
    calls: list[Made] = [(each, {"text": "a"}) for each in ("plain", "loop", "denied")]
    calls.append(("plain", {"text": 1}))
    database = asyncio.run(record(tmp_path, *calls))
    with closing(sqlite3.connect(database)) as connection, connection:
        for table in ("calls", "fresh"):
            connection.execute(f"UPDATE {table} SET reason = NULL, decided_at = NULL, implicit = NULL")
    relaxed = POLICY.replace("p, role:agent, *, tool:denied, invoke", "p, role:lead, *, tool:denied, invoke")
    access = load(write_every_rule(tmp_path / "relaxed", policy=relaxed)).access
    assert access is not None
    with read_recorded_calls(database, EVERY_CALL, looks_back=True) as history:
        result = replay_calls(history, access)

    assert result.groups == ()
    assert {each.obstacle: each.calls for each in result.unreplayed} == {"arguments": 1, "turn": 1, "decision": 1}


def test_pruned_store_says_since_when_it_is_complete(tmp_path: Path) -> None:
    database = asyncio.run(record(tmp_path, *(("plain", {"text": str(number)}) for number in range(3))))
    with read_recorded_calls(database, EVERY_CALL, looks_back=True) as history:
        assert (history.complete_since, history.total) == (None, 3)
        second = list(history)[1]
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM fresh WHERE number = 1")
    with read_recorded_calls(database, EVERY_CALL, looks_back=True) as history:
        assert history.complete_since is not None
        assert history.complete_since <= second.at


@pytest.mark.parametrize("column", ["owner", "roles", "args", "results"])
def test_row_that_no_gateway_writes_is_refused_with_its_number(tmp_path: Path, column: str) -> None:
    database = asyncio.run(record(tmp_path, ("plain", {"text": "a"})))
    for value in ("", "[", "7", "[" * 100_000, '{"a":1}', "[[[]]]"):
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(f"UPDATE fresh SET {column} = ?", (value,))

        if (column, value) not in (("args", '{"a":1}'), ("args", "[[[]]]"), ("roles", '{"a":1}')):
            with pytest.raises(GatewayError, match="call 1 of the store is not as a gateway writes it"):
                read_all(database)


def test_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection, connection:
        connection.execute("CREATE TABLE other (id INTEGER)")

    with pytest.raises(GatewayError, match="cannot be read as a store of this version"):
        read_all(tmp_path / "other.db")


def test_postgres_has_the_same_calls_as_sqlite(tmp_path: Path, new_database: Callable[[], str]) -> None:
    calls: list[Made] = [
        ("plain", {"text": "a"}),
        ("small_amounts", BIG),
        ("denied", {"text": "a"}),
        ("approved", {"text": "a"}),
    ]
    database = asyncio.run(record(tmp_path, *calls, replay={"arguments": "values"}))
    address = new_database()
    import_sqlite(database, address)

    assert read_all(RemoteStore(partial(open_read_only_session, address))) == read_all(database)


def test_entry_about_something_else_is_no_call() -> None:
    assert to_recorded_entry({"event": "gateway-started", "at": 1}) is None
    assert to_recorded_entry({"event": "call-settled", "at": 1}) is None


def test_export_with_too_many_shards_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app.recorded_entries._MOST_SHARDS", 1)
    line = b'{"body":{"at":1,"event":"gateway-started"},"hash":"%b","prev":"%b","seq":1,"shard":"%b"}\n'
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"".join(line % (b"0" * 64, b"0" * 64, name) for name in (b"a", b"b")))

    with pytest.raises(InvalidExport, match="line 2 begins one shard too many"), open_exported_calls(log):
        raise AssertionError("the export was accepted")


def test_time_that_no_gateway_writes_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    row = b'{"body":{"at":-1,"event":"call-settled"},"hash":"%b","prev":"%b","seq":1,"shard":"a"}\n'
    log.write_bytes(row % (b"0" * 64, b"0" * 64))

    with pytest.raises(InvalidExport, match="line 1 has no time"), open_exported_calls(log):
        raise AssertionError("the export was accepted")
