"""Callers stopped by a rate or quota get the time to retry after, over every transport."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from tests.support.gateways.gate_projects import ANA, rule, start_gate_project
from tests.support.gateways.projects import http_tool

pytestmark = pytest.mark.anyio

CHECKS: dict[str, dict[str, Any]] = {
    "rate": {"type": "rate", "limit": 1, "per": "1h"},
    "quota": {"type": "quota", "limit": 1, "per": "1d"},
    "held quota": {"type": "quota", "limit": 1, "per": "1d", "onExhausted": "hold"},
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_limited_call_answers_when_to_retry(check: dict[str, Any], tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, rule("few", check, tools=["plain"])) as (gateway, backend):
        ana = gateway.caller(ANA)
        first = await ana.rest_call("desk", "plain", {"text": "x"})
        second = await ana.rest_call("desk", "plain", {"text": "y"})
        turn = (await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
        in_turn = await ana.rest("POST", f"/v1/turns/{turn}/calls", {"tool": "plain", "arguments": {"text": "z"}})
        document = (await ana.rest("GET", "/v1/openapi.json")).json

        assert (first.header("retry-after"), "limited" in first.json) == (None, False)
        for reply in (second, in_turn):
            limited = reply.json["limited"]
            assert (reply.status, reply.json["isError"]) == (429, True)
            assert reply.header("retry-after") == str(limited["retryAfter"])
            assert {**limited, "retryAfter": 0} == {
                "status": "limited",
                "kind": check["type"],
                "rule": "few",
                "retryAfter": 0,
            }
            assert 0 < limited["retryAfter"] <= 86_400
            assert f"try again in {limited['retryAfter']} s" in reply.json["result"]["text"]
            schema = {"$ref": "#/components/schemas/Called", "components": document["components"]}
            Draft202012Validator(schema).validate(reply.json)
        assert backend.paths == ["/plain"]


async def test_limited_call_answers_the_same_over_mcp(tmp_path: Path) -> None:
    promised = {"type": "object", "properties": {"text": {"type": "string"}}}
    made = [lambda port: http_tool("typed", port, output={"schema": promised, "artifact": "json"})]
    few = rule("few", CHECKS["rate"], tools=["plain", "typed"])
    async with start_gate_project(tmp_path, few, tools=made) as (gateway, _):
        ana = gateway.caller(ANA)
        for tool in ("plain", "typed"):
            await ana.modern_call("desk", tool, {"text": "x"})
        session = await ana.begin_legacy("desk")

        plain = (await ana.modern_call("desk", "plain", {"text": "x"})).json["result"]
        typed = (await ana.modern_call("desk", "typed", {"text": "x"})).json["result"]
        params = {"name": "plain", "arguments": {"text": "x"}}
        legacy = (await ana.legacy("desk", "tools/call", params, session=session)).json["result"]

    for result in (plain, legacy):
        assert result["isError"] is True
        assert result["structuredContent"] == result["_meta"]["gateway/limited"]
        assert result["structuredContent"]["retryAfter"] > 0
    assert "structuredContent" not in typed
    assert typed["_meta"]["gateway/limited"]["rule"] == "few"
