"""`gateway trace` draws a call from the records of real gateways."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from tests.support.gateways.gate_projects import (
    ANA,
    HELD,
    LIZ,
    PEOPLE,
    grant,
    pay,
    pending_id,
    rule,
    start_gate_project,
)
from tests.support.gateways.projects import environ_of, http_tool

pytestmark = pytest.mark.anyio

APPROVED = rule("leads-agree", HELD)
CANARY = "canary-3310"


def trace(folder: Path, *words: str) -> Result:
    env = {**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(folder / "data"), "NO_COLOR": "1"}
    return CliRunner().invoke(app, ["trace", *words, "--project", str(folder / "p")], env=env)


def data_of(found: Result) -> list[dict[str, Any]]:
    assert found.exit_code == 0, found.output
    tree: list[dict[str, Any]] = json.loads(found.stdout)
    return tree


def nodes(tree: Any, kind: str) -> list[dict[str, Any]]:
    """Return every node of a kind, from the top."""
    mine = [tree] if tree["kind"] == kind else []
    return mine + [each for child in tree.get("children", ()) for each in nodes(child, kind)]


async def test_plain_call_is_one_branch(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path) as (gateway, _):
        answer = await gateway.caller(ANA).rest_call("desk", "plain", {"text": CANARY})

    [turn] = data_of(trace(tmp_path, answer.json["callId"], "--output", "json"))
    text = trace(tmp_path, answer.json["callId"]).stdout

    [dispatch] = turn["children"]
    [call] = dispatch["children"]
    gate, backend = call["children"]
    assert (turn["kind"], turn["catalogue"], turn["subject"]) == ("turn", "desk", "user:ana")
    assert (call["kind"], call["name"], call["outcome"]) == ("call", "plain", "ok")
    assert (gate["kind"], gate["reason"], gate["outcome"]) == ("gate", "permitted", "allow")
    assert "afterMs" not in gate  # its one entry is written at its end
    assert (backend["kind"], backend["name"], backend["outcome"]) == ("backend", "http", "ok")
    assert backend["bytes"] > 0
    assert call["tookMs"] >= backend["tookMs"] >= 0
    assert "└── backend http  ok" in text
    assert CANARY not in text


async def test_held_call_is_drawn_with_the_one_that_went_on(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, APPROVED) as (gateway, _):
        held = await pay(gateway.caller(ANA))
        await grant(gateway.caller(LIZ), pending_id(held), note="fine \x1b[31m")
        ran = await pay(gateway.caller(ANA))

    first = data_of(trace(tmp_path, held.json["callId"], "--output", "json"))
    second = data_of(trace(tmp_path, ran.json["callId"], "--output", "json"))
    text = trace(tmp_path, ran.json["callId"]).stdout

    assert first == second
    calls = [call for turn in first for call in nodes(turn, "call")]
    assert [(call["callId"], call["outcome"]) for call in calls] == [
        (held.json["callId"], "hold"),
        (ran.json["callId"], "ok"),
    ]
    before, after = [nodes(call, "approval") for call in calls]
    [approval] = after
    [decision] = nodes(approval, "decision")
    assert [each["approvalId"] for each in before] == [approval["approvalId"]] == [pending_id(held)]
    assert (approval["name"], approval["outcome"], approval["reason"]) == ("leads-agree", "used", "money leaves")
    assert approval["askedBy"] == held.json["callId"]
    assert (decision["name"], decision["outcome"]) == ("user:liz", "grant")
    assert nodes(calls[0], "backend") == []
    [backend] = nodes(calls[1], "backend")
    assert (backend["outcome"], backend["startOnRecord"]) == ("ok", True)
    [refused], [allowed] = [nodes(call, "gate") for call in calls]
    assert "afterMs" in refused
    assert allowed["afterMs"] == backend["afterMs"] <= calls[1]["tookMs"]  # the decision lets it start
    assert "decision user:liz  grant" in text
    assert "\x1b" not in text


async def test_failed_and_refused_calls_show_why(tmp_path: Path) -> None:
    down = [lambda port: http_tool("down", 1)]
    denied = rule("never", {"type": "arguments", "require": "false", "message": "not this one"})
    async with start_gate_project(tmp_path, denied, tools=down) as (gateway, _):
        failed = await gateway.caller(ANA).rest_call("desk", "down", {"text": "x"})
        refused = await pay(gateway.caller(ANA))

    [down_call] = nodes(data_of(trace(tmp_path, failed.json["callId"], "--output", "json"))[0], "call")
    [denied_call] = nodes(data_of(trace(tmp_path, refused.json["callId"], "--output", "json"))[0], "call")
    assert down_call["outcome"] == "error"
    assert down_call["children"][1]["error"].startswith("E_")
    assert denied_call["outcome"] == "deny"
    [gate] = denied_call["children"]
    assert (gate["reason"], gate["rules"]) == ("rule-denied", ["never"])


async def test_unknown_call_and_unreadable_store_are_reported(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    async with start_gate_project(tmp_path) as (gateway, _):
        answer = await gateway.caller(ANA).rest_call("desk", "plain", {"text": "x"})
    missing = trace(tmp_path, "no-such-call")
    elsewhere = trace(tmp_path, answer.json["callId"], "--turn", "no-such-turn")
    odd = trace(tmp_path, "\ud800\x00'--")
    with sqlite3.connect(next((tmp_path / "data").glob("*.db"))) as connection:
        connection.execute("INSERT INTO audit SELECT shard, seq + 9, prev, hash, CAST('{' AS BLOB), at FROM audit")
    still = trace(tmp_path, answer.json["callId"])
    env = {**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(nothing)}
    unkept = CliRunner().invoke(app, ["trace", "x", "--project", str(tmp_path / "p")], env=env)

    assert (missing.exit_code, elsewhere.exit_code, odd.exit_code, unkept.exit_code) == (1, 1, 1, 1)
    assert "there is no call 'no-such-call'; gateway calls list shows the calls" in missing.output
    assert "in turn 'no-such-turn'" in elsewhere.output
    assert "there are no records" in unkept.output
    assert still.exit_code == 0
