"""The command line on a PostgreSQL store: setting it up, moving into it, looking at it, stopping things."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import psycopg
import pytest
from gated import ANA, HELD, LIZ, PEOPLE, code_of, desk, grant, pay, pending_id, rule, write
from postgres_clusters import Cluster
from replicated import CONNECTION, replicas, written
from secured import counting, environ_of, started
from typer.testing import CliRunner, Result

from gateway.cli import app

pytestmark = pytest.mark.anyio


@pytest.fixture
def address(new_database: Callable[[], str]) -> str:
    return new_database()


def command(*words: str, env: Mapping[str, str]) -> Result:
    return CliRunner(env={**environ_of(PEOPLE), **env}).invoke(app, words)


async def ran(*words: str, env: Mapping[str, str], code: int = 0) -> str:
    done = await asyncio.to_thread(command, *words, env=env)
    assert done.exit_code == code, done.output
    assert not any(value in done.output for value in env.values()), "a connection is a secret"
    return done.output


async def test_database_is_set_up_by_a_variable_alone(postgres: Cluster) -> None:
    env = {"DATABASE": postgres.database()}
    by_variable = ("--connection-env", "DATABASE")

    unset = await ran("storage", "check", *by_variable, env=env, code=1)
    first = await ran("storage", "migrate", *by_variable, env=env)
    second = await ran("storage", "migrate", *by_variable, env=env)
    good = json.loads(await ran("storage", "check", *by_variable, "--format", "json", env=env))

    assert "run: gateway storage migrate" in unset
    assert "went from nothing to 0011" in first
    assert "has version 0011 already" in second
    assert good["is_good"] is True
    assert (good["gateways"], good["running_calls"], good["pending_approvals"]) == (0, 0, 0)


async def test_what_cannot_be_used_is_told(postgres: Cluster, tmp_path: Path) -> None:
    async with counting() as backend:
        on_sqlite = write(tmp_path / "other", desk(backend.port))
    nobody = {"DATABASE": "postgresql://gateway:hidden@127.0.0.1:1/none"}
    missing = await ran("storage", "check", "--connection-env", "NO_SUCH", env={}, code=2)
    silent = await ran("storage", "migrate", "--connection-env", "DATABASE", env=nobody, code=1)
    other = await ran("storage", "migrate", "-p", str(on_sqlite), env={"GATEWAY_DATA_DIR": str(tmp_path)}, code=2)

    assert "NO_SUCH is not set" in missing
    assert "cannot be reached" in silent
    assert "hidden" not in silent
    assert "is no PostgreSQL database" in other


async def test_sqlite_store_moves_into_postgres_as_it_is(tmp_path: Path, address: str) -> None:
    data = tmp_path / "data"
    held = rule("leads-agree", HELD)
    async with counting() as backend:
        before = write(tmp_path / "before", desk(backend.port, rules=[held]))
        async with started(before, data, people=PEOPLE) as gateway:
            ana = gateway.caller(ANA)
            await ana.rest_call("desk", "plain", {"text": "one\0two"}, idempotency_key="k")
            id = pending_id(await pay(ana))
            project = written(tmp_path, backend, held)
            env = {CONNECTION: address, "GATEWAY_DATA_DIR": str(data)}
            words = ("storage", "copy", "-p", str(project), "--from", str(data / "gateway.db"))
            runs = await asyncio.to_thread(command, *words, env=env)

        copied = await asyncio.to_thread(command, *words, env=env)
        again = await asyncio.to_thread(command, *words, env=env)
        verified = await ran("audit", "verify", "--connection-env", CONNECTION, env={CONNECTION: address})
        async with started(project, data, people=PEOPLE, environ={CONNECTION: address}) as gateway:
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
    assert decided.json["code"] == "E_APPROVAL_STALE"  # it is for the configuration it was asked under
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

        listed = json.loads(await ran("calls", "list", *where, "--output", "json", env=env))
        shown = await ran("trace", str(paid.json["callId"]), *where, env=env)
        state = json.loads(await ran("storage", "check", *where, "--format", "json", env=env))
        await ran("quarantine", "add", "tool:plain", "--reason", "leaks", *where, env=env)
        stopped = await ana.rest_call("desk", "plain", {"text": "x"})
        there = await ran("quarantine", "list", *where, env=env)
        await ran("quarantine", "lift", "tool:plain", "--reason", "fixed", *where, env=env)
        again = await ana.rest_call("desk", "plain", {"text": "x"})
        log = await ran("audit", "export", "--connection-env", CONNECTION, env=env)
        verified = await ran("audit", "verify", "--connection-env", CONNECTION, env=env)

    assert [each["tool"] for each in listed] == ["pay", "pay", "plain"]
    assert "leads-agree" in shown
    assert state["gateways"] == 1
    assert "quarantined" in code_of(stopped)
    assert "tool:plain" in there
    assert again.json["isError"] is False
    assert "quarantine" in log
    assert verified


async def test_log_that_somebody_changed_is_noticed(tmp_path: Path, address: str) -> None:
    async with replicas(tmp_path, address, count=1) as ([gateway], _):
        await pay(gateway.caller(ANA))
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE audit SET body = body || ' '::bytea WHERE seq = 2")
    changed = await ran("audit", "verify", "--connection-env", CONNECTION, env={CONNECTION: address}, code=1)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE audit SET hash = 'short' WHERE seq = 1")
    damaged = await ran("audit", "verify", "--connection-env", CONNECTION, env={CONNECTION: address}, code=1)
    unset = await ran("audit", "verify", "--connection-env", "NO_SUCH", env={}, code=2)

    assert "2" in changed
    assert "no entry of a decision log" in damaged
    assert "NO_SUCH is not set" in unset
