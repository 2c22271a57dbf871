"""A small project for the MCP endpoint, started with everything but listeners."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.app.app import run_app
from gateway.app.settings import Settings
from gateway.engine.service import Service
from gateway.model.caller import Principal
from tests.support.paths import ROOT
from tests.support.ready_databases import put_ready_database
from tests.support.yaml_documents import format_documents

TOOLS_MODULE = "tests.server.mcp.tools"
ANA = Principal("user:ana", frozenset({"role:member"}))
KIM = Principal("user:kim", frozenset({"role:member"}))
BOSS = Principal("user:boss", frozenset({"role:member", "role:boss"}))
EVE = Principal("user:eve", frozenset({"role:stranger"}))
PEOPLE = {each.subject.removeprefix("user:"): each for each in (ANA, KIM, BOSS, EVE)}

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
MARKED = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "level": {"type": "integer", "x-mcp-header": "Level"},
    },
    "required": ["region"],
}


def document(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "gateway/v1", "kind": kind, "metadata": {"name": name, "owner": "team"}, "spec": dict(spec)}


def tool(name: str, schema: Mapping[str, Any] = NOTHING, *, run: str = "thread", **more: Any) -> dict[str, Any]:
    function = more.pop("function", name)
    spec = {
        "version": "1.0.0",
        "description": f"The tool {name}.",
        "trust": {"tier": "internal", "flags": []},
        "input": {"schema": dict(schema)},
        "backend": {"type": "python", "entrypoint": f"{TOOLS_MODULE}:{function}", "run": run},
    }
    return document("Tool", name, {**spec, **more})


QUOTE = {"type": "object", "properties": {"pieces": {"type": "integer"}}, "required": ["pieces"]}
TOTAL = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
LINES = {"type": "object", "properties": {"lines": {"type": "integer"}}, "required": ["lines"]}
KEY = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}

TOOLS = [
    tool("echo", TEXT, run="loop"),
    tool("motto", TEXT, run="loop", function="echo", trust={"tier": "internal", "trusted": True}),
    tool("quote", QUOTE, output={"artifact": "json", "schema": TOTAL}),
    tool("misquote", output={"artifact": "json", "schema": TOTAL}),
    tool("report", LINES, output={"artifact": "text", "inline": False}),
    tool("picture"),
    tool("papers"),
    tool("broken"),
    tool("marked", MARKED, run="loop"),
    tool("wait", KEY, run="loop"),
    tool("steps", run="loop"),
    tool("steps_in_a_thread"),
    tool("chatter", run="loop"),
    tool("greet", run="loop"),
    tool("greet_twice", run="loop"),
    tool("greet_in_a_thread"),
    tool("greet_briefly", run="loop", function="greet", limits={"timeout": "300ms"}),
    tool("greet_briefly_in_a_thread", function="greet_in_a_thread", limits={"timeout": "300ms"}),
    tool("sample_if_possible", run="loop"),
    tool("unseen", TEXT, function="echo"),
    tool("hidden", TEXT, run="loop", function="echo"),
    tool("boss_only", TEXT, run="loop", function="echo"),
]

REST = [
    document(
        "Gateway",
        "small",
        {
            "defaults": {"pipeline": "standard", "collisionPolicy": "careful", "tier": "internal", "catalogue": "all"},
            "identity": ["local"],
            "storage": "main",
        },
    ),
    document(
        "IdentityProvider",
        "local",
        {"type": "none", "subject": "user:ana", "roles": ["role:member", "role:boss", "role:stranger"]},
    ),
    document("Storage", "main", {"type": "sqlite", "path": "${GATEWAY_DATA_DIR:-data}/gateway.db"}),
    document(
        "TrustTier",
        "internal",
        {"rank": 0, "description": "Ours.", "origin": "first-party", "mayBeTrusted": True},
    ),
    document("CollisionPolicy", "careful", {"onCollision": "throw", "honourTool": "sameOrHigherTrust"}),
    document("Pipeline", "standard", {"call": [{"use": "gates"}, {"use": "timeout", "with": {"after": "30s"}}]}),
    document(
        "Catalogue",
        "all",
        {
            "audience": ["role:member"],
            "include": [{"tools": ["*"]}],
            "hidden": ["hidden"],
            "publish": {"path": "/all"},
            "instructions": "Be kind.",
        },
    ),
    document(
        "Catalogue",
        "bare",
        {
            "audience": ["role:member"],
            "include": [{"tools": ["echo", "report"]}],
            "publish": {"path": "/bare", "render": "plain"},
        },
    ),
    document(
        "Catalogue",
        "rest-only",
        {"audience": ["role:member"], "include": [{"tools": ["echo"]}], "publish": {"path": "/rest", "as": ["http"]}},
    ),
]

POLICY = """\
p, role:member, *, tool:*, discover|invoke|read, internal, allow
p, role:boss, *, tool:boss_only, invoke, internal, allow
p, user:ana, *, tool:unseen, discover|invoke|read, internal, deny
p, user:kim, *, tool:unseen, discover|invoke|read, internal, deny
p, user:ana, *, tool:boss_only, invoke, internal, deny
"""


def write_project(folder: Path, *, policy: str = POLICY, tools: list[dict[str, Any]] = TOOLS) -> Path:
    (folder / "configs").mkdir(parents=True, exist_ok=True)
    (folder / "policies").mkdir(exist_ok=True)
    (folder / "configs" / "all.yaml").write_text(format_documents([*REST, *tools]), encoding="utf-8")
    (folder / "policies" / "policy.csv").write_text(policy, encoding="utf-8")
    (folder / "policies" / "roles.csv").write_text("g, role:boss, role:member\n", encoding="utf-8")
    model = (ROOT / "policies" / "model.conf").read_text(encoding="utf-8")
    (folder / "policies" / "model.conf").write_text(model, encoding="utf-8")
    return folder


@asynccontextmanager
async def small_service(folder: Path, *, policy: str = POLICY) -> AsyncIterator[Service]:
    write_project(folder, policy=policy)
    put_ready_database(folder / "data" / "gateway.db")
    environ = {
        **os.environ,
        "GATEWAY_PYTHON_PACKAGES": TOOLS_MODULE,
        "GATEWAY_DATA_DIR": str(folder / "data"),
    }
    settings = Settings.model_validate({"configs": folder, "python_packages": (TOOLS_MODULE,)})
    async with run_app(settings, environ=environ) as gateway:
        assert gateway.unavailable_tools == ()
        yield gateway.service
