"""`gateway calls`: an operator reads the call records from the project's own store."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from gateway.model.caller import Principal
from gateway.model.primitives.deadline import now_microseconds
from gateway.storage.call_store import StoredCall, StoredResult, StoredTurn
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

SMALL = ROOT / "tests" / "projects" / "small"
ANA = Principal("user:ana", frozenset({"role:clerk"}))
KIM = Principal("user:kim", frozenset({"role:lead"}))
SECRET = "hunter2"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
DAY = 86_400_000_000
"""In microseconds."""


@pytest.fixture(autouse=True)
def beside_the_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def calls(*words: str) -> Result:
    return CliRunner().invoke(app, ["calls", *words, "--project", str(SMALL)])


def call(id: str, principal: Principal = ANA, *, tool: str = "order_read") -> StoredCall:
    args = {"order": id, "password": SECRET}
    return StoredCall(
        *(
            id,
            f"turn-of-{principal.subject}",
            tool,
            tool,
            args,
            "c" * 64,
            principal,
            "desk",
            "r" * 64,
            now_microseconds(),
        ),
        decision="allow",
        because="role:clerk at policy.csv:2",
    )


def settled(call: StoredCall, *, is_error: bool = False) -> StoredCall:
    text = StoredResult("text", text=f"the password is {SECRET}")
    completed = call.created + 12_000
    return replace(call, status="settled", is_error=is_error, results=(text,), completed=completed)


@asynccontextmanager
async def store_with_calls(folder: Path) -> AsyncIterator[SqliteStore]:
    """Four calls: one of another subject, one that failed, one that is running, and one from long ago."""
    store = await open_sqlite_store(folder / "data" / "gateway.db")
    at = now_microseconds()
    for who in (ANA, KIM):
        await store.open_turn(StoredTurn(f"turn-of-{who.subject}", who, "desk", "r", b"s", at, at + DAY))
    old = call("old")
    await store.record_call(settled(replace(old, created=old.created - 3 * DAY)))
    denied = replace(call("kims", KIM), decision="deny", because="refund_limit at gates.yaml:12", trace_id=TRACE)
    await store.record_call(settled(denied))
    await store.record_call(settled(call("failed", tool="refund_pay"), is_error=True))
    await store.start_call(call("running", tool="refund_pay"))
    try:
        yield store
    finally:
        await store.close()


def list_ids(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [each["callId"] for each in json.loads(result.stdout)]


async def test_calls_are_listed_newest_first_while_a_gateway_runs_on_the_store(tmp_path: Path) -> None:
    async with store_with_calls(tmp_path):
        answer = calls("list")

    assert answer.exit_code == 0
    header, *rows = [line.split() for line in answer.stdout.splitlines()]
    assert header[:3] == ["when", "tool", "outcome"]
    assert [(row[1], row[2], row[-1]) for row in rows] == [
        ("refund_pay", "started", "running"),
        ("refund_pay", "error", "failed"),
        ("order_read", "ok", "kims"),
        ("order_read", "ok", "old"),
    ]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        pytest.param(["--tool", "refund_pay"], ["running", "failed"], id="tool"),
        pytest.param(["--subject", "user:kim"], ["kims"], id="subject"),
        pytest.param(["--status", "started"], ["running"], id="status"),
        pytest.param(["--since", "1h"], ["running", "failed", "kims"], id="since-an-age"),
        pytest.param(["--since", "2020-01-01"], ["running", "failed", "kims", "old"], id="since-a-day"),
        pytest.param(["--limit", "1"], ["running"], id="limit"),
        pytest.param(["--decision", "deny"], ["kims"], id="decision"),
        pytest.param(["--decision", "hold"], [], id="no-such-decision"),
        pytest.param(["--rule", "refund_limit"], ["kims"], id="rule"),
        pytest.param(["--rule", "policy.csv:2"], ["running", "failed", "old"], id="row"),
        pytest.param(["--rule", "refund%limit"], [], id="no-wildcard"),
        pytest.param(["--rule", "refund?limit"], [], id="no-placeholder"),
        pytest.param(["--rule", "_"], ["kims"], id="underscore"),
        pytest.param(["--rule", "\\"], [], id="backslash"),
        pytest.param(["--trace", TRACE], ["kims"], id="trace"),
        pytest.param(["--trace", f"00-{TRACE.upper()}-00f067aa0ba902b7-01"], ["kims"], id="traceparent"),
        pytest.param(["--trace", "0" * 32], [], id="no-such-trace"),
        pytest.param(["--tool", "refund_pay", "--subject", "user:kim"], [], id="nothing-fits"),
        pytest.param(["--subject", "' OR 1=1 --"], [], id="hostile-text"),
    ],
)
async def test_filters_narrow_the_list(tmp_path: Path, options: list[str], ids: list[str]) -> None:
    async with store_with_calls(tmp_path):
        assert list_ids(calls("list", "--output", "json", *options)) == ids


@pytest.mark.parametrize("trace", ["", "4bf92f", "0" * 33, f"{TRACE}-1", "' OR 1=1 --"])
def test_a_trace_that_is_none_is_wrong_use(trace: str) -> None:
    found = calls("list", "--trace", trace)

    assert found.exit_code == 2
    assert "is no trace" in found.output


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("command", [("list",), ("show", "failed")], ids=["list", "show"])
async def test_arguments_are_shown_on_request_and_results_never(
    tmp_path: Path, command: tuple[str, ...], output: str
) -> None:
    async with store_with_calls(tmp_path):
        plain = calls(*command, "--output", output)
        asked = calls(*command, "--output", output, "--arguments")

    assert SECRET not in plain.output
    assert SECRET in asked.output
    assert "the password is" not in asked.output


async def test_one_call_shows_who_why_and_how_it_ended(tmp_path: Path) -> None:
    async with store_with_calls(tmp_path):
        answer = calls("show", "failed", "--output", "json")

    record = json.loads(answer.stdout)
    assert record["subject"] == "user:ana"
    assert record["because"] == "role:clerk at policy.csv:2"
    assert (record["status"], record["isError"]) == ("settled", True)
    assert record["results"] == [{"kind": "text", "type": None, "byteLength": None}]


async def test_records_can_be_read_after_the_gateway_has_ended(tmp_path: Path) -> None:
    async with store_with_calls(tmp_path):
        pass

    assert list_ids(calls("list", "--output", "json", "--status", "started")) == ["running"]


async def test_unknown_call_is_exit_code_1(tmp_path: Path) -> None:
    async with store_with_calls(tmp_path):
        answer = calls("show", "nothing")

    assert answer.exit_code == 1
    assert "there is no call 'nothing'" in answer.stderr


def test_project_without_records_is_reported_and_nothing_is_created(tmp_path: Path) -> None:
    answer = calls("list")

    assert answer.exit_code == 1
    assert "there are no records in data/gateway.db" in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_no_store_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "gateway.db").write_bytes(b"no database at all, but long enough to be looked at" * 100)

    answer = calls("list")

    assert answer.exit_code == 1
    assert "not an SQLite database" in answer.stderr


@pytest.mark.parametrize("options", [["--since", "soon"], ["--status", "lost"], ["--limit", "0"]], ids=str)
def test_wrong_use_is_exit_code_2(options: list[str]) -> None:
    assert calls("list", *options).exit_code == 2
