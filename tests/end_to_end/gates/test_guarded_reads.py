"""Denied reads over both MCP versions and REST, in the turn that produced the result and in others.

The record, the decision log and the span contain the decision.
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.model.turns.events import now
from gateway.policy.stop_list import Stop, StopTarget
from tests.support.gateways.projects import (
    Caller,
    Document,
    GatewayUnderTest,
    Person,
    Reply,
    base_documents,
    catalogue,
    document,
    http_tool,
    start_call_counter,
    start_gateway,
    tokens_of,
    write_project,
)

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("user",), "acme")
LIZ = Person("liz", ("lead",), "acme")
PEOPLE = [ANA, LIZ]
SECRET = "4711-secret"
INVOICE = orjson.dumps({"currency": SECRET, "lines": [{"amount": 5}]})
POLICY = """\
p, role:user, *, tool:*, discover|invoke, internal, allow
p, role:lead, *, tool:*, discover|approve, internal, allow
"""
CLASS = {"description": "An invoice.", "class": "gateway.examples.artifacts:InvoiceArtifact"}
DENIALS = ["tool:artifact_*", "tool:artifact_invoice_total", "class:invoice", "tool:invoice_get"]


@asynccontextmanager
async def start_invoice_gateway(tmp_path: Path, *rules: Document, rows: str = "") -> AsyncIterator[GatewayUnderTest]:
    async with start_call_counter() as backend:
        backend.answer = lambda body: INVOICE
        tool = http_tool("invoice_get", backend.port, output={"inline": False, "artifact": "invoice"})
        desk = catalogue("desk", ["role:user", "role:lead"], ["*"])
        documents = [
            *base_documents(["tokens"]),
            tokens_of(PEOPLE),
            document("ArtifactClass", "invoice", CLASS),
            tool,
            desk,
        ]
        write_project(tmp_path / "p", [*documents, *rules], policy=POLICY + rows)
        async with start_gateway(
            tmp_path / "p", tmp_path / "data", people=PEOPLE, python_packages=("gateway",)
        ) as gateway:
            yield gateway


def rule(name: str, check: dict[str, Any], **match: Any) -> Document:
    return document("GateRule", name, {"description": "A test.", "match": match, "check": check})


def deny(object: str) -> str:
    return f"p, role:user, *, {object}, read, internal, deny\n"


async def query_everything(ana: Caller, query: str = "artifact_invoice_total") -> dict[str, Reply]:
    """Query the invoice over every transport, in its own turn and in another, and by every other route."""
    arguments = {"text": "x"}
    made = (await ana.modern_call("desk", "invoice_get", arguments)).json["result"]["_meta"]
    handle, call = made["gateway/turn"], made["gateway/call"]
    session = await ana.begin_legacy("desk")
    params: dict[str, Any] = {"name": "invoice_get", "arguments": arguments}
    in_session = (await ana.legacy("desk", "tools/call", params, session=session)).json["result"]["_meta"]
    own = {"name": query, "arguments": {"callId": in_session["gateway/call"]}}
    turn = (await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
    in_turn = await ana.rest("POST", f"/v1/turns/{turn}/calls", {"tool": "invoice_get", "arguments": arguments})
    kept = in_turn.json["callId"]
    asked = {"tool": query, "arguments": {"callId": kept}}
    place = f"/v1/artifacts/{kept}"
    return {
        "modern": await ana.modern_call("desk", query, {"callId": call}, **{"gateway/turn": handle}),
        "modern elsewhere": await ana.modern_call("desk", query, {"callId": call}),
        "session": await ana.legacy("desk", "tools/call", own, session=session),
        "REST turn": await ana.rest("POST", f"/v1/turns/{turn}/calls", asked),
        "REST alone": await ana.rest_call("desk", query, {"callId": kept}),
        "REST query": await ana.rest("POST", f"{place}/query?turn={turn}", {"tool": query}),
        "content": await ana.rest("GET", f"{place}/content?turn={turn}"),
        "record": await ana.rest("GET", f"/v1/calls/{kept}?turn={turn}"),
        "render": await ana.rest("GET", f"/v1/turns/{turn}/render"),
        "resource": await ana.modern("desk", "resources/read", {"uri": f"artifact://calls/{handle}/{call}"}),
        "resource in session": await ana.legacy(
            "desk", "resources/read", {"uri": f"artifact://calls/{handle}/{call}"}, session=session
        ),
    }


def find_secret(replies: dict[str, Reply]) -> set[str]:
    return {name for name, reply in replies.items() if SECRET.encode() in reply.body}


CONTENT = {"content", "resource", "resource in session"}
QUERIES = {"modern", "modern elsewhere", "session", "REST turn", "REST alone", "REST query"}


async def test_without_a_row_about_reading_everything_is_shown(tmp_path: Path) -> None:
    async with start_invoice_gateway(tmp_path) as gateway:
        found = find_secret(await query_everything(gateway.caller(ANA)))

    assert found == QUERIES | CONTENT | {"render"}


@pytest.mark.parametrize("object", DENIALS)
async def test_a_row_that_denies_reading_applies_everywhere(object: str, tmp_path: Path) -> None:
    async with start_invoice_gateway(tmp_path, rows=deny(object)) as gateway:
        replies = await query_everything(gateway.caller(ANA))
        found = find_secret(replies)
        entries = log_of(tmp_path)

    is_about_the_query = object == "tool:artifact_invoice_total"
    assert found == (CONTENT if is_about_the_query else set())
    assert replies["REST turn"].status == replies["REST alone"].status == 403
    assert replies["modern"].json["result"]["isError"] is True
    queries = [each for each in entries if each["target"]["tool"] == "artifact_invoice_total"]
    assert len(queries) >= 5
    assert {(each["decision"]["effect"], each["decision"]["reason"]) for each in queries} == {("deny", "not-permitted")}


async def test_a_row_about_all_of_a_result_leaves_its_queries(tmp_path: Path) -> None:
    async with start_invoice_gateway(tmp_path, rows=deny("tool:artifact_content")) as gateway:
        found = find_secret(await query_everything(gateway.caller(ANA)))

    assert found == QUERIES


def log_of(tmp_path: Path) -> list[Any]:
    with sqlite3.connect(tmp_path / "data" / "gateway.db") as database:
        bodies = [orjson.loads(row[0]) for row in database.execute("SELECT body FROM audit ORDER BY at, seq")]
    return [each for each in bodies if "target" in each and "decision" in each]


async def test_a_quarantined_principal_reads_nothing(tmp_path: Path) -> None:
    async with start_invoice_gateway(tmp_path) as gateway:
        ana = gateway.caller(ANA)
        made = (await ana.modern_call("desk", "invoice_get", {"text": "x"})).json["result"]["_meta"]
        handle, call = made["gateway/turn"], made["gateway/call"]
        keyed = {"gateway/idempotencyKey": "k", "gateway/turn": handle}
        first = await ana.modern_call("desk", "artifact_invoice_total", {"callId": call}, **keyed)
        stop = Stop(StopTarget("principal", "user:ana"), "leaks", "user:ops", now())
        await gateway.running.controlled.stops.add(stop)
        place = f"/v1/artifacts/{call}"
        replies = {
            "query": await ana.modern_call("desk", "artifact_cat", {"callId": call}, **{"gateway/turn": handle}),
            "replay": await ana.modern_call("desk", "artifact_invoice_total", {"callId": call}, **keyed),
            "content": await ana.rest("GET", f"{place}/content?turn={handle}"),
            "artifact": await ana.rest("GET", f"{place}?turn={handle}"),
            "record": await ana.rest("GET", f"/v1/calls/{first.json['result']['_meta']['gateway/call']}"),
            "render": await ana.rest("GET", f"/v1/turns/{handle}/render"),
            "events": await ana.rest("GET", f"/v1/turns/{handle}/events"),
            "resource": await ana.modern("desk", "resources/read", {"uri": f"artifact://calls/{handle}/{call}"}),
        }
        reasons = {each["decision"]["reason"] for each in log_of(tmp_path) if each["decision"]["effect"] == "deny"}

    assert SECRET.encode() in first.body
    assert find_secret(replies) == set()
    assert "quarantined" in replies["query"].json["result"]["content"][0]["text"]
    assert replies["content"].status == 403
    assert reasons == {"quarantined", "not-permitted"}


async def test_rules_and_limits_that_name_query_tools_decide(tmp_path: Path) -> None:
    only_liz = {"type": "arguments", "require": 'caller.subject == "user:liz"', "message": "no totals"}
    closed = rule("no-totals", only_liz, tools=["artifact_invoice_total"])
    twice = {"type": "rate", "limit": 2, "per": "1h", "by": ["subject", "tool"]}
    few = rule("few", twice, tools=["artifact_line_count"])
    async with start_invoice_gateway(tmp_path, closed, few) as gateway:
        ana = gateway.caller(ANA)
        found = find_secret(await query_everything(ana))
        counted = await query_everything(ana, "artifact_line_count")

    assert found == CONTENT
    limited = {name for name in QUERIES if b"lets 2 calls through per 1h" in counted[name].body}
    assert limited == QUERIES - {"modern", "modern elsewhere"}
    assert counted["session"].json["result"]["_meta"]["gateway/limited"]["rule"] == "few"
    assert {counted[name].status for name in ("REST turn", "REST alone", "REST query")} == {429}


async def test_people_can_be_asked_about_a_query(tmp_path: Path) -> None:
    check = {"type": "approval", "from": ["role:lead"], "timeout": "10m", "reason": "Totals are private"}
    held = rule("ask-first", check, tools=["artifact_invoice_total"])
    held["spec"]["holdFor"] = "1s"
    async with start_invoice_gateway(tmp_path, held) as gateway:
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        made = await ana.rest_call("desk", "invoice_get", {"text": "x"})
        call = made.json["callId"]
        pending = await ana.rest_call("desk", "artifact_invoice_total", {"callId": call})
        [approval] = pending.json["pending"]["approvals"]
        granted = await liz.rest("POST", f"/v1/approvals/{approval['id']}/resolve", {})
        again = await ana.rest_call("desk", "artifact_invoice_total", {"callId": call})

    assert pending.status == 202
    assert granted.status == 200, granted.body
    assert SECRET.encode() in again.body, again.body
