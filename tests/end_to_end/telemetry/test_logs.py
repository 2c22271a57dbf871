"""The log of a running gateway: machine-readable lines without contents of calls."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateways.commands import run_gateway
from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.gate_projects import ANA, PEOPLE, POLICY, approval_client
from tests.support.gateways.projects import (
    ANY_TEXT,
    Caller,
    document,
    environ_of,
    http_tool,
    send_http,
    start_call_counter,
    write_project,
)

pytestmark = pytest.mark.anyio

CANARY = "canary-b7e2f6"


def boom() -> dict[str, Any]:
    spec = {
        "version": "1.0.0",
        "description": "Fails.",
        "input": {"schema": ANY_TEXT},
        "trust": {"tier": "internal", "flags": []},
        "backend": {"type": "python", "entrypoint": "tests.support.tools.leaky_tools:boom"},
    }
    return document("Tool", "boom", spec)


def lines_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("format", ["json", "text"])
async def test_no_secret_and_no_content_is_logged(format: str, tmp_path: Path, forks: ForkServer) -> None:
    env = {
        **environ_of(PEOPLE),
        "GATEWAY_DATA_DIR": str(tmp_path / "data"),
        "GATEWAY_PYTHON_PACKAGES": "tests.support.tools.leaky_tools",
        "GATEWAY_LOG_LEVEL": "debug",
        "GATEWAY_LOG_FORMAT": format,
        "VENDOR_KEY": f"env-{CANARY}",
    }
    async with start_call_counter() as backend, aiohttp.ClientSession() as session:
        tools = [boom(), http_tool("down", 1)]
        project = write_project(tmp_path / "p", approval_client(backend.port, tools=tools), policy=POLICY)
        gateway = forks.start(project, tmp_path / "data", env=env)
        ana = Caller(send_http(session, gateway.url), ANA.token)
        for tool in ("boom", "plain", "down", CANARY):
            await ana.rest_call("desk", tool, {"text": f"argument-{CANARY}"}, idempotency_key=f"key-{CANARY}-{tool}")
            await ana.modern_call("desk", tool, {"text": f"argument-{CANARY}"})
        await ana.raw("POST", f"/desk/mcp?token={CANARY}", f"{{{CANARY}".encode(), content_type="application/json")
        await ana.raw("GET", f"/v1/{CANARY}?secret={CANARY}", x_secret=CANARY)
        for header in ({"authorization": f"Bearer {CANARY}"}, {"authorization": f"Basic {CANARY}"}, {"host": CANARY}):
            async with session.get(f"{gateway.url}/v1/catalogues", headers=header) as answer:
                assert answer.status in (401, 421)
        gateway.stop()
    output = gateway.output.read_text(encoding="utf-8")

    assert CANARY not in output
    assert ANA.token not in output
    assert "sent %s with %s" in output
    assert "Task exception was never retrieved" in output
    assert output.isascii() or format == "text"
    if format == "json":
        logged = lines_of(output)
        assert {"time", "level", "logger", "message"} <= set.intersection(*(set(each) for each in logged))
        [sent, *_] = [each for each in logged if each["logger"] == "vendor.sdk"]
        assert sent["tool"] == "boom"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"GATEWAY_LOG_FORMAT": "xml"}, "GATEWAY_LOG_FORMAT: write json or text"),
        ({"GATEWAY_LOG_LEVEL": "loud"}, "GATEWAY_LOG_LEVEL: write debug, info, warning or error"),
    ],
    ids=["format", "level"],
)
def test_wrong_setting_is_named(env: Mapping[str, str], message: str, tmp_path: Path) -> None:
    found = run_gateway("serve", "--configs", str(tmp_path), env={**os.environ, **env})

    assert found.returncode == 2
    assert message in found.stderr
