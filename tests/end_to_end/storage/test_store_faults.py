"""The fault table: store fault × moment × engine × transport. It checks the caller's answer, the record afterwards, and
the answer for the same idempotency key. The backend counts effects, so no answer can hide one.

`before`: the store fails before the call. `during`: it fails while the tool runs, and works again when the tool ends.
`after`: it fails while the tool runs, and still fails when the outcome has to be recorded.
"""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import aiohttp
import anyio
import psycopg
import pytest

from gateway.storage.sql.postgres.database_setup import migrate_postgres
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.gate_projects import (
    ANA,
    HELD,
    LIZ,
    PEOPLE,
    approval_client,
    grant,
    rule,
    start_gate_project,
    write,
)
from tests.support.gateways.projects import (
    CallCounter,
    Caller,
    Reply,
    environ_of,
    send_http,
    start_call_counter,
    start_gateway,
)
from tests.support.gateways.replicas import CONNECTION, write_replica_project
from tests.support.servers.postgres_server import PostgresServer, start_postgres
from tests.support.servers.slow_proxy import SlowProxy, start_slow_proxy
from tests.support.small_disk import SmallDisk, mount_small_disk

pytestmark = pytest.mark.anyio

TASKS = "io.modelcontextprotocol/tasks"
WIRES = ("rest", "modern", "legacy")
NOT_RUN = ("E_STORE_UNAVAILABLE", "E_CREDENTIAL_UNKNOWN")
"""The store cannot be written, or revoked tokens cannot be checked."""


# --- answers ---


@dataclass(frozen=True)
class Answer:
    """An answer in the same form for every transport."""

    wire: str
    status: int
    is_result: bool
    is_error: bool
    call_id: str | None
    turn: str | None
    text: str
    code: str | None
    is_recorded: bool
    retry_after: str | None

    @classmethod
    def of(cls, wire: str, reply: Reply) -> "Answer":
        body, wait = reply.json, reply.header("retry-after")
        if wire == "rest":
            is_result = "result" in body
            marked = body.get("notRecorded", {}).get("code")
            text = str(body.get("result", {}).get("text", body.get("detail")))
            code = body.get("code") or marked
            ids = (body.get("callId"), body.get("turn"))
            return cls(wire, reply.status, is_result, bool(body.get("isError")), *ids, text, code, not marked, wait)
        result = body.get("result")
        if result is None:
            error = body.get("error") or {"message": body.get("detail"), "data": body}
            code = (error.get("data") or {}).get("code")
            return cls(wire, reply.status, False, True, None, None, str(error["message"]), code, True, wait)
        meta, text = result["_meta"], " ".join(each.get("text", "") for each in result["content"])
        code = meta.get("gateway/notRecorded", {}).get("code")
        ids = (meta.get("gateway/call"), meta.get("gateway/turn"))
        return cls(wire, reply.status, True, result["isError"], *ids, text, code, code is None, wait)


class Wires:
    """One caller on three transports. Every call has its own text, and every writing call an idempotency key."""

    def __init__(self, caller: Caller, session: str) -> None:
        self.caller = caller
        self._session = session

    async def call(self, wire: str, name: str, tool: str = "pay") -> Answer:
        key, given = f"key-{name}-{wire}", {"text": f"{name}-{wire}"}
        meta = {"gateway/idempotencyKey": key} if tool == "pay" else {}
        if wire == "rest":
            reply = await self.caller.rest_call(
                "desk", tool, given, **({"idempotency_key": key} if tool == "pay" else {})
            )
        elif wire == "modern":
            reply = await self.caller.modern_call("desk", tool, given, **meta)
        else:
            params = {"name": tool, "arguments": given, "_meta": meta}
            reply = await self.caller.legacy("desk", "tools/call", params, session=self._session)
        return Answer.of(wire, reply)

    async def call_all(self, name: str, tool: str = "pay") -> list[Answer]:
        return list(await asyncio.gather(*(self.call(wire, name, tool) for wire in WIRES)))

    async def recorded(self) -> list[dict[str, Any]]:
        """Return the records in the database, ignoring the memory of this process."""
        found: list[dict[str, Any]] = []
        for status in ("started", "settled", "unknown"):
            reply = await self.caller.rest("GET", f"/v1/calls?status={status}")
            found += reply.json["calls"] if reply.status == 200 else []
        return found

    async def settled(self, answer: Answer) -> str:
        """Wait until the call is no longer running and return the status of its record."""
        with anyio.fail_after(60):
            while True:
                found = {str(each["callId"]): str(each["status"]) for each in await self.recorded()}
                if found.get(str(answer.call_id), "started") != "started":
                    return found[str(answer.call_id)]
                await anyio.sleep(0.05)

    async def works_again(self, name: str) -> list[Answer]:
        """Retry the same keys until the store works again, and return the answers."""
        found = {}
        with anyio.fail_after(60):  # it takes seconds; a busy machine runs other tests meanwhile
            for wire in WIRES:
                while (
                    not (answer := await self.call(wire, name)).is_result
                    or not answer.is_recorded
                    or _is_not_made(answer)
                ):
                    expected = (*NOT_RUN, "E_OUTCOME_NOT_RECORDED", "E_IDEMPOTENCY_RUNNING")
                    assert answer.code in expected or _is_not_made(answer), answer
                    await anyio.sleep(0.05)
                found[wire] = answer
        return list(found.values())


def _is_not_made(answer: "Answer") -> bool:
    """Whether the store still failed when the call needed it."""
    return answer.is_error and "the call was not made" in answer.text


def effects(backend: CallCounter, name: str) -> list[int]:
    """Return how often the tool had its effect, for each transport."""
    return [sum(f'"{name}-{wire}"'.encode() in body for _, _, body in backend.requests) for wire in WIRES]


# --- engines and their faults ---


Fault = Callable[[], AbstractAsyncContextManager[None]]


@dataclass
class Bench:
    """A running gateway, its store, and the faults of the store."""

    wires: Wires
    backend: CallCounter
    faults: dict[str, Fault]


@asynccontextmanager
async def on_sqlite(tmp_path: Path) -> AsyncIterator[Bench]:
    with mount_small_disk(64) as disk:
        data = disk.folder / "data"
        async with start_gated(tmp_path, data) as (wires, backend):
            database = data / "gateway.db"
            faults: dict[str, Fault] = {
                "full": lambda: _fill_disk(disk),
                "slow": lambda: _lock_database(database),
                "gone": lambda: _move_database(database),
                "replaced": lambda: _replace_database(database),
            }
            yield Bench(wires, backend, faults)


@asynccontextmanager
async def on_ext4(tmp_path: Path) -> AsyncIterator[Bench]:
    """A file system on which files can be made immutable, like one that turned read-only."""
    folder = Path(mkdtemp(prefix="gateway-faults-", dir="/var/tmp"))
    try:
        async with start_gated(tmp_path, folder / "data") as (wires, backend):
            wal = folder / "data" / "gateway.db-wal"
            yield Bench(wires, backend, {"read-only": lambda: _immutable(wal)})
    finally:
        shutil.rmtree(folder)


@asynccontextmanager
async def start_gated(tmp_path: Path, data: Path) -> AsyncIterator[tuple[Wires, CallCounter]]:
    async with start_call_counter() as backend:
        project = write(tmp_path / "p", approval_client(backend.port))
        async with start_gateway(project, data, people=PEOPLE) as gateway:
            caller = gateway.caller(ANA)
            yield Wires(caller, await caller.begin_legacy("desk")), backend


@asynccontextmanager
async def _fill_disk(disk: SmallDisk) -> AsyncIterator[None]:
    disk.fill()
    try:
        yield
    finally:
        disk.make_room()


@asynccontextmanager
async def _lock_database(database: Path) -> AsyncIterator[None]:
    with closing(sqlite3.connect(database, isolation_level=None, timeout=20)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


@asynccontextmanager
async def _immutable(file: Path) -> AsyncIterator[None]:
    done = subprocess.run(["chattr", "+i", str(file)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file can be made immutable here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(file)], check=True)


def _files(database: Path) -> list[Path]:
    return [path for end in ("", "-wal", "-shm") if (path := Path(f"{database}{end}")).exists()]


@asynccontextmanager
async def _move_database(database: Path) -> AsyncIterator[None]:
    moved = [(each, database.parent / f"away-{each.name}") for each in _files(database)]
    for here, there in moved:
        here.rename(there)
    try:
        yield
    finally:
        for here, there in moved:
            there.rename(here)


@asynccontextmanager
async def _replace_database(database: Path) -> AsyncIterator[None]:
    """Replace the database in use by a new one without records."""
    for each in _files(database):
        each.rename(database.parent / f"old-{each.name}")
    made = await open_sqlite_store(database)
    await made.close()
    yield


@asynccontextmanager
async def on_postgres(tmp_path: Path, cluster: PostgresServer) -> AsyncIterator[Bench]:
    address = cluster.database()
    await anyio.to_thread.run_sync(migrate_postgres, address)
    async with AsyncExitStack() as stack:
        way = stack.enter_context(start_slow_proxy(cluster.port))
        backend = await stack.enter_async_context(start_call_counter())
        project = write_replica_project(tmp_path, backend)
        environ = {CONNECTION: address.replace(str(cluster.port), str(way.port))}
        gateway = await stack.enter_async_context(
            start_gateway(project, tmp_path / "data", people=PEOPLE, environ=environ)
        )
        caller = gateway.caller(ANA)
        wires = Wires(caller, await caller.begin_legacy("desk"))
        faults: dict[str, Fault] = {
            "full": lambda: _without_room(address),
            "read-only": lambda: _read_only(cluster, way),
            "slow": lambda: _frozen(cluster),
            "gone": lambda: _stop_server(cluster),
            "restarted": lambda: _restart_server(cluster),
            "replaced": lambda: _recreate_database(cluster, address),
        }
        yield Bench(wires, backend, faults)


def _execute(address: str, *statements: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        for each in statements:
            connection.execute(each.encode())


@asynccontextmanager
async def _without_room(address: str) -> AsyncIterator[None]:
    """The server answers as if its disk were full, to every statement that adds or changes calls."""
    function = """CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"""
    triggers = [f"CREATE TRIGGER full_{t} BEFORE INSERT OR UPDATE ON {t} EXECUTE FUNCTION no_room()" for t in _TABLES]
    room = "CREATE TRIGGER full_leases BEFORE INSERT ON leases EXECUTE FUNCTION no_room()"
    await anyio.to_thread.run_sync(lambda: _execute(address, function, *triggers, room))
    try:
        yield
    finally:
        await anyio.to_thread.run_sync(lambda: _execute(address, "DROP FUNCTION no_room CASCADE"))


_TABLES = ("turns", "calls", "claims")


@asynccontextmanager
async def _read_only(cluster: PostgresServer, way: SlowProxy) -> AsyncIterator[None]:
    setting = "default_transaction_read_only"
    address = cluster.address("postgres")
    _execute(address, f"ALTER SYSTEM SET {setting} = on", "SELECT pg_reload_conf()")
    with anyio.fail_after(20):
        while not await anyio.to_thread.run_sync(lambda: _shown(address, setting)):
            await anyio.sleep(0.01)
    way.cut()
    try:
        yield
    finally:
        _execute(address, f"ALTER SYSTEM RESET {setting}", "SELECT pg_reload_conf()")
        way.cut()


def _shown(address: str, setting: str) -> bool:
    with psycopg.connect(address) as connection:
        return connection.execute(f"SHOW {setting}".encode()).fetchone() == ("on",)


@asynccontextmanager
async def _frozen(cluster: PostgresServer) -> AsyncIterator[None]:
    pids = cluster.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def _stop_server(cluster: PostgresServer) -> AsyncIterator[None]:
    await anyio.to_thread.run_sync(cluster.stop)
    try:
        yield
    finally:
        await anyio.to_thread.run_sync(cluster.start)


@asynccontextmanager
async def _restart_server(cluster: PostgresServer) -> AsyncIterator[None]:
    """The server restarts at once, and every connection breaks."""
    await anyio.to_thread.run_sync(cluster.stop)
    await anyio.to_thread.run_sync(cluster.start)
    yield


@asynccontextmanager
async def _recreate_database(cluster: PostgresServer, address: str) -> AsyncIterator[None]:
    name = address.rpartition("/")[2]

    def recreate() -> None:
        _execute(cluster.address("postgres"), f"DROP DATABASE {name} WITH (FORCE)", f"CREATE DATABASE {name}")
        migrate_postgres(address)

    await anyio.to_thread.run_sync(recreate)
    yield


# --- the table ---


ROWS = [
    *(("sqlite", fault) for fault in ("full", "slow", "gone", "replaced")),
    ("ext4", "read-only"),
    *(("postgres", fault) for fault in ("full", "read-only", "slow", "gone", "restarted", "replaced")),
]
LASTING = frozenset({"full", "read-only", "slow", "gone"})
"""Faults that last as long as the table requires; the others end at once and leave a changed state."""

UNREADABLE = frozenset({("sqlite", "gone"), ("postgres", "slow"), ("postgres", "gone")})
"""Requests may be refused before their keys are read: neither tokens nor turns can be read."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresServer]:
    with start_postgres() as found:
        yield found


@asynccontextmanager
async def bench(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if engine == "postgres":
        async with on_postgres(tmp_path, request.getfixturevalue("cluster")) as made:
            yield made
    else:
        async with (on_sqlite if engine == "sqlite" else on_ext4)(tmp_path) as made:
            yield made


@pytest.mark.parametrize(("engine", "fault"), ROWS, ids=lambda value: value)
async def test_no_effect_without_a_true_answer_and_no_answer_that_invites_another(
    engine: str, fault: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with bench(engine, tmp_path, request) as made:
        wires, backend, failing = made.wires, made.backend, made.faults[fault]
        await wires.works_again("first")

        await check_before(wires, backend, failing, is_lasting=fault in LASTING)
        await check_during(wires, backend, failing)
        can_read = (engine, fault) not in UNREADABLE
        await check_after(wires, backend, failing, is_lasting=fault in LASTING, can_read=can_read)


async def check_before(wires: Wires, backend: CallCounter, failing: Fault, *, is_lasting: bool) -> None:
    async with failing():
        answers = await wires.call_all("before")
        ran = effects(backend, "before")
    for answer, effect in zip(answers, ran, strict=True):
        if answer.is_result and not answer.is_error:
            assert not is_lasting, answer
            assert effect == 1, answer
        else:
            assert effect == 0, answer
            assert_not_run(answer)
    again = await wires.works_again("before")
    assert [(answer.is_error, f"before-{answer.wire}" in answer.text) for answer in again] == [(False, True)] * 3
    assert effects(backend, "before") == [1, 1, 1]


async def check_during(wires: Wires, backend: CallCounter, failing: Fault) -> None:
    async with start_calls(wires, backend, "during") as calls:
        async with failing():
            pass
        await ready(wires.caller)
        answers = await calls()
    await check_ran(wires, backend, "during", answers)


async def check_after(wires: Wires, backend: CallCounter, failing: Fault, *, is_lasting: bool, can_read: bool) -> None:
    async with start_calls(wires, backend, "after") as calls, failing():
        answers = await calls()
        meanwhile = await wires.call_all("after") if is_lasting else []
    for answer in answers:
        assert not is_lasting or answer.code == "E_OUTCOME_NOT_RECORDED", answer
    for first, answer in zip(answers, meanwhile, strict=bool(meanwhile)):
        if can_read or answer.is_result:
            assert (answer.is_result, answer.is_error, answer.call_id) == (True, False, first.call_id), answer
            assert answer.retry_after is None
        else:
            assert answer.code in NOT_RUN, answer
    await check_ran(wires, backend, "after", answers)


async def check_ran(wires: Wires, backend: CallCounter, name: str, answers: list[Answer]) -> None:
    for answer in answers:
        assert (answer.is_result, answer.is_error, answer.retry_after) == (True, False, None), answer
        assert answer.status == 200
        assert f"{name}-{answer.wire}" in answer.text
        assert answer.is_recorded or answer.code == "E_OUTCOME_NOT_RECORDED"
    assert [await wires.settled(answer) for answer in answers] == ["settled"] * 3
    again = await wires.works_again(name)
    assert [answer.call_id for answer in again] == [answer.call_id for answer in answers]
    assert all(f"{name}-{answer.wire}" in answer.text for answer in again)
    assert effects(backend, name) == [1, 1, 1]


def assert_not_run(answer: Answer) -> None:
    assert answer.code in NOT_RUN or "the call was not made" in answer.text, answer
    assert "while running" not in answer.text
    if answer.wire == "rest":
        assert (answer.status, answer.retry_after) == (503, "1"), answer


@asynccontextmanager
async def start_calls(
    wires: Wires, backend: CallCounter, name: str, *, tool: str = "pay"
) -> AsyncIterator[Callable[[], Any]]:
    """Yield running calls whose effect has happened; the yielded function lets the tool answer.

    A call is repeated if the store was too slow for it, as it may be on a busy machine.
    """

    async def call_until_made(number: int, wire: str) -> Answer:
        answer = await wires.call(wire, name, tool)
        while not effects(backend, name)[number]:
            assert answer.code in NOT_RUN or _is_not_made(answer), answer
            await anyio.sleep(0.05)
            answer = await wires.call(wire, name, tool)
        return answer

    gate = backend.goes_on = asyncio.Event()
    calls = asyncio.gather(*(call_until_made(number, wire) for number, wire in enumerate(WIRES)))

    async def finished() -> list[Answer]:
        gate.set()
        return await calls

    try:
        with anyio.fail_after(60):
            while effects(backend, name) != [1, 1, 1]:
                assert not calls.done(), calls.result()
                await anyio.sleep(0.01)
        yield finished
    finally:
        backend.goes_on = None
        gate.set()
        await asyncio.gather(calls, return_exceptions=True)


async def ready(caller: Caller) -> None:
    with anyio.fail_after(60):
        while (await caller.rest("GET", "/readyz")).status != 200:
            await anyio.sleep(0.02)


# --- calls without a recorded start, and held calls ---


@pytest.mark.parametrize(("engine", "fault"), [("sqlite", "slow"), ("postgres", "full")], ids=lambda value: value)
async def test_reading_call_is_not_shown_before_it_is_recorded(
    engine: str, fault: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Such a call has no effect and no start record, so its result is shown only after it is recorded."""
    async with bench(engine, tmp_path, request) as made:
        wires, backend = made.wires, made.backend
        await wires.works_again("first")
        async with start_calls(wires, backend, "read", tool="plain") as calls, made.faults[fault]():
            answers = await calls()
        for answer in answers:
            assert (answer.code, answer.retry_after) == ("E_OUTCOME_NOT_RECORDED", None), answer
            assert "the tool ran" in answer.text
            assert f"read-{answer.wire}" not in answer.text
            assert answer.status == (424 if answer.wire == "rest" else 200)
        assert [await wires.settled(answer) for answer in answers] == ["settled"] * 3


async def test_held_call_that_ran_while_the_store_failed_is_a_completed_task(tmp_path: Path) -> None:
    held = rule("leads-agree", HELD, holdFor="30s")
    declared: Any = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}
    async with start_gate_project(tmp_path, held) as (gateway, backend), asyncio.timeout(30):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        task = (await ana.modern_call("desk", "pay", {"text": "x"}, **declared)).json["result"]
        await grant(liz, task["taskId"])
        gate = backend.goes_on = asyncio.Event()
        open_for_reading = asyncio.create_task(ana.modern("desk", "tasks/get", {"taskId": task["taskId"]}, **declared))
        while not backend.requests:
            await asyncio.sleep(0.01)
        async with _lock_database(tmp_path / "data" / "gateway.db"):
            gate.set()
            during = (await open_for_reading).json["result"]
        wires = Wires(ana, "")
        while [each["status"] for each in await wires.recorded() if each["callId"].startswith("task-")] != ["settled"]:
            await asyncio.sleep(0.05)
        after = (await ana.modern("desk", "tasks/get", {"taskId": task["taskId"]}, **declared)).json["result"]

    assert (during["status"], after["status"]) == ("completed", "completed")
    assert during["result"]["_meta"]["gateway/notRecorded"]["code"] == "E_OUTCOME_NOT_RECORDED"
    assert "gateway/notRecorded" not in after["result"]["_meta"]
    assert during["result"]["_meta"]["gateway/call"] == after["result"]["_meta"]["gateway/call"]
    assert len(backend.requests) == 1


# --- a store inside the gateway process restarts with it ---


@pytest.mark.parametrize("moment", ["before", "during"])
async def test_sqlite_restarted_with_its_gateway(moment: str, tmp_path: Path, forks: ForkServer) -> None:
    data = tmp_path / "data"
    env = {**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(data)}
    async with start_call_counter() as backend, aiohttp.ClientSession() as session:
        project = write(tmp_path / "p", approval_client(backend.port))
        gateway = await asyncio.to_thread(forks.start, project, data, env=env)
        caller = Caller(send_http(session, gateway.url), ANA.token)
        wires = Wires(caller, await caller.begin_legacy("desk"))
        if moment == "during":
            async with start_calls(wires, backend, moment) as calls:
                await asyncio.to_thread(gateway.kill)
                with pytest.raises(aiohttp.ClientError):
                    await calls()
        else:
            await asyncio.to_thread(gateway.kill)
            with pytest.raises(aiohttp.ClientError):
                await wires.call_all(moment)
        again = await asyncio.to_thread(forks.start, project, data, env=env)
        caller = Caller(send_http(session, again.url), ANA.token)
        wires = Wires(caller, await caller.begin_legacy("desk"))
        answers = await wires.call_all(moment)
        on_record = await wires.recorded()
        await asyncio.to_thread(again.stop)

    assert effects(backend, moment) == [1, 1, 1]
    if moment == "during":
        assert {each["status"] for each in on_record} == {"unknown"}
        assert all("not known" in each.text and each.retry_after is None for each in answers), answers
    else:
        assert all(each.is_result and not each.is_error for each in answers), answers
