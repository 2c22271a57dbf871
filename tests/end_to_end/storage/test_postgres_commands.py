"""The command line on a PostgreSQL store: set up, move, inspect, stop."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from tests.support.gateways.gate_projects import (
    ANA,
    HELD,
    LIZ,
    PEOPLE,
    approval_client,
    code_of,
    grant,
    pay,
    pending_id,
    rule,
    write,
)
from tests.support.gateways.projects import environ_of, start_call_counter, start_gateway
from tests.support.gateways.replicas import CONNECTION, replicas, write_replica_project
from tests.support.servers.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def address(new_database: Callable[[], str]) -> str:
    return new_database()


def command(*words: str, env: Mapping[str, str]) -> Result:
    return CliRunner(env={**environ_of(PEOPLE), **env}).invoke(app, words)


async def run_command(*words: str, env: Mapping[str, str], code: int = 0) -> str:
    done = await asyncio.to_thread(command, *words, env=env)
    assert done.exit_code == code, done.output
    assert not any(value in done.output for value in env.values()), "a connection is a secret"
    return done.output


async def test_database_is_set_up_by_a_variable_alone(postgres: PostgresServer) -> None:
    env = {"DATABASE": postgres.database()}
    by_variable = ("--connection-env", "DATABASE")

    unset = await run_command("storage", "check", *by_variable, env=env, code=1)
    first = await run_command("storage", "migrate", *by_variable, env=env)
    second = await run_command("storage", "migrate", *by_variable, env=env)
    good = json.loads(await run_command("storage", "check", *by_variable, "--format", "json", env=env))

    assert "run: gateway storage migrate" in unset
    assert "went from nothing to 0013" in first
    assert "already has version 0013" in second
    assert good["is_good"] is True
    assert (good["gateways"], good["running_calls"], good["pending_approvals"]) == (0, 0, 0)


async def test_unusable_store_is_reported(postgres: PostgresServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        on_sqlite = write(tmp_path / "other", approval_client(backend.port))
    unreachable = {"DATABASE": "postgresql://gateway:hidden@127.0.0.1:1/none"}
    missing = await run_command("storage", "check", "--connection-env", "NO_SUCH", env={}, code=2)
    silent = await run_command("storage", "migrate", "--connection-env", "DATABASE", env=unreachable, code=1)
    other = await run_command(
        "storage", "migrate", "-p", str(on_sqlite), env={"GATEWAY_DATA_DIR": str(tmp_path)}, code=2
    )

    assert "NO_SUCH is not set" in missing
    assert "cannot be reached" in silent
    assert "hidden" not in silent
    assert "is not a PostgreSQL database" in other


async def test_sqlite_store_moves_into_postgres_as_it_is(tmp_path: Path, address: str) -> None:
    data = tmp_path / "data"
    held = rule("leads-agree", HELD)
    async with start_call_counter() as backend:
        before = write(tmp_path / "before", approval_client(backend.port, rules=[held]))
        async with start_gateway(before, data, people=PEOPLE) as gateway:
            ana = gateway.caller(ANA)
            await ana.rest_call("desk", "plain", {"text": "one\0two"}, idempotency_key="k")
            id = pending_id(await pay(ana))
            project = write_replica_project(tmp_path, backend, held)
            env = {CONNECTION: address, "GATEWAY_DATA_DIR": str(data)}
            words = ("storage", "copy", "-p", str(project), "--from", str(data / "gateway.db"))
            runs = await asyncio.to_thread(command, *words, env=env)

        copied = await asyncio.to_thread(command, *words, env=env)
        again = await asyncio.to_thread(command, *words, env=env)
        verified = await run_command("audit", "verify", "--connection-env", CONNECTION, env={CONNECTION: address})
        async with start_gateway(project, data, people=PEOPLE, environ={CONNECTION: address}) as gateway:
            ana = gateway.caller(ANA)
            replayed = await ana.rest_call("desk", "plain", {"text": "one\0two"}, idempotency_key="k")
            decided = await grant(gateway.caller(LIZ), id)
            changed = await pay(ana)
            listed = (await ana.rest("GET", "/v1/calls")).json["calls"]

    assert (runs.exit_code, "a gateway runs on" in runs.stderr) == (1, True), runs.stderr
    assert copied.exit_code == 0, copied.stderr
    assert "calls: 2" in copied.stderr
    assert (again.exit_code, "has records already" in again.stderr) == (1, True)
    assert "entries in" in verified, verified
    assert replayed.json["replayed"] is True
    assert decided.json["code"] == "E_APPROVAL_STALE"  # it is bound to the configuration it was requested under
    assert pending_id(changed) != id
    assert len(listed) == 3
    assert backend.paths == ["/plain"]


async def test_operators_see_and_stop_from_outside(tmp_path: Path, address: str) -> None:
    held = rule("leads-agree", HELD)
    async with replicas(tmp_path, address, held, count=1) as ([gateway], _):
        ana = gateway.caller(ANA)
        await ana.rest_call("desk", "plain", {"text": "x"})
        await grant(gateway.caller(LIZ), pending_id(await pay(ana)))
        paid = await pay(ana)
        env = {CONNECTION: address}
        where = ("-p", str(tmp_path / "p"))

        listed = json.loads(await run_command("calls", "list", *where, "--output", "json", env=env))
        shown = await run_command("trace", str(paid.json["callId"]), *where, env=env)
        state = json.loads(await run_command("storage", "check", *where, "--format", "json", env=env))
        await run_command("quarantine", "add", "tool:plain", "--reason", "leaks", *where, env=env)
        stopped = await ana.rest_call("desk", "plain", {"text": "x"})
        there = await run_command("quarantine", "list", *where, env=env)
        await run_command("quarantine", "lift", "tool:plain", "--reason", "fixed", *where, env=env)
        again = await ana.rest_call("desk", "plain", {"text": "x"})
        log = await run_command("audit", "export", "--connection-env", CONNECTION, env=env)
        verified = await run_command("audit", "verify", "--connection-env", CONNECTION, env=env)

    assert [each["tool"] for each in listed] == ["pay", "pay", "plain"]
    assert "leads-agree" in shown
    assert state["gateways"] == 1
    assert "quarantined" in code_of(stopped)
    assert "tool:plain" in there
    assert again.json["isError"] is False
    assert "quarantine" in log
    assert verified


async def test_log_that_was_changed_is_noticed(tmp_path: Path, address: str) -> None:
    async with replicas(tmp_path, address, count=1) as ([gateway], _):
        await pay(gateway.caller(ANA))
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE audit SET body = body || ' '::bytea WHERE seq = 2")
    changed = await run_command("audit", "verify", "--connection-env", CONNECTION, env={CONNECTION: address}, code=1)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE audit SET hash = 'short' WHERE seq = 1")
    damaged = await run_command("audit", "verify", "--connection-env", CONNECTION, env={CONNECTION: address}, code=1)
    unset = await run_command("audit", "verify", "--connection-env", "NO_SUCH", env={}, code=2)

    assert "2" in changed
    assert "no entry of a decision log" in damaged
    assert "NO_SUCH is not set" in unset
