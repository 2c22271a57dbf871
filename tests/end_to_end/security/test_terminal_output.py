"""Commands in a terminal show untrusted text without executing its control sequences."""

import ast
import asyncio
import json
import os
import pty
import unicodedata
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.end_to_end.gates.test_workers import callers, fork_gateway
from tests.support.audit_log import run_audit_command
from tests.support.gateways.commands import start_command
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.gate_projects import ANA, HELD, LIZ, PEOPLE, approval_client, pay, pending_id, rule, write
from tests.support.gateways.projects import LEGACY, environ_of, start_call_counter
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

HOSTILE = "x\x1b]0;owned\x07\x1b[2J\x9b31m\x85\x7f\u202e\u2066\u200b\u2028\b"
"""Sets a title, clears the screen, colours, reverses the direction, hides, and moves back."""


def in_a_terminal(*words: str, env: Mapping[str, str]) -> str:
    """Return the output of a command in a terminal without colours."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, **env, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200"}
    command = start_command(*words, stdout=theirs, env=environ)
    os.close(theirs)
    shown = b""
    try:
        while piece := _read(ours):
            shown += piece
    finally:
        os.close(ours)
        command.wait(timeout=60)
    return shown.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the writer has closed
        return b""


def find_control_characters(shown: str) -> set[str]:
    """Return the characters that a terminal would interpret or hide."""
    return {char for char in shown if char not in "\r\n" and unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")}


@asynccontextmanager
async def hostile_gateway(forks: ForkServer, tmp_path: Path) -> AsyncIterator[tuple[GatewayFork, Path, str, str]]:
    """Yield a gateway whose log, records and approvals contain `HOSTILE`: its project, a call and an approval."""
    async with start_call_counter() as backend:
        project, data = (
            write(tmp_path / "p", approval_client(backend.port, rules=[rule("held", HELD)])),
            tmp_path / "data",
        )
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA) as [ana]:
                info = {"name": HOSTILE, "version": HOSTILE}
                params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info}
                session = (await ana.legacy("desk", "initialize", params, id=0)).header("mcp-session-id")
                assert session is not None
                asked = {"name": "plain", "arguments": {"text": HOSTILE}}
                await ana.legacy("desk", "tools/call", asked, session=session)
                await ana.legacy("desk", "tools/call", {"name": HOSTILE, "arguments": {HOSTILE: 1}}, session=session)
                await ana.rest_call("desk", quote(HOSTILE), {"text": HOSTILE})
                called = (await ana.rest_call("desk", "plain", {"text": HOSTILE})).json["callId"]
                approval = pending_id(await pay(ana, HOSTILE))
            yield gateway, project, called, approval
            await asyncio.to_thread(gateway.stop)


async def test_nothing_of_a_stranger_is_obeyed(forks: ForkServer, tmp_path: Path) -> None:
    async with hostile_gateway(forks, tmp_path) as (gateway, project, called, approval):
        database = ("--database", str(tmp_path / "data" / "gateway.db"))
        place = ("--project", str(project))
        there = ("--url", gateway.url)
        commands = [
            *(("audit", "export", *database, "--format", each) for each in ("jsonl", "cef", "ocsf")),
            *(("calls", "list", *place, "--arguments", "--output", each) for each in ("text", "json")),
            *(("calls", "show", called, *place, "--arguments", "--output", each) for each in ("text", "json")),
            *(("trace", called, *place, "--output", each) for each in ("text", "json")),
            *(("approvals", "list", *there, "--output", each) for each in ("text", "json")),
            *(("approvals", "show", approval, *there, "--output", each) for each in ("text", "json")),
        ]
        env = {**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(tmp_path / "data"), "GATEWAY_TOKEN": LIZ.token}
        shown = {words: await asyncio.to_thread(in_a_terminal, *words, env=env) for words in commands}

    assert {
        words: find_control_characters(each) for words, each in shown.items() if find_control_characters(each)
    } == {}
    assert {words: each for words, each in shown.items() if "owned" not in each and words[0] != "trace"} == {}
    kept = [_texts(json.loads(each)) for words, each in shown.items() if words[0] == "calls" and "json" in words]
    assert all(HOSTILE in texts for texts in kept)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for each in value.items() for part in each for text in _texts(part)]
    return [text for each in value for text in _texts(each)] if isinstance(value, list) else []


async def test_file_is_exported_byte_for_byte(forks: ForkServer, tmp_path: Path) -> None:
    """Only terminal output is neutralised; a file keeps the bytes that were hashed."""
    async with hostile_gateway(forks, tmp_path):
        pass
    exported = run_audit_command("export", "--database", tmp_path / "data" / "gateway.db")
    (tmp_path / "log").write_bytes(exported.stdout_bytes)

    assert "\u202e" in exported.stdout
    assert run_audit_command("verify", tmp_path / "log").exit_code == 0


def test_commands_print_in_one_place() -> None:
    """Only `output` writes to the terminal, so that no command can forget to neutralise text."""
    found = []
    for module in sorted((ROOT / "gateway" / "cli").rglob("*.py")):
        if module.name == "output.py":
            continue
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.echo", "print", "sys.stdout.write"):
                found.append(f"{module.name}: {ast.unparse(node)}")

    assert found == ["main.py: typer.echo(__version__)"]
