"""A gateway in the loop of the test, in front of upstream servers."""

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.app.app import App, run_app
from gateway.app.asgi_apps import build_asgi_apps
from gateway.app.settings import Settings
from gateway.server.http.drain import ShutdownSignal
from tests.backends.mcp.servers.asgi_host import serve_app
from tests.support.paths import ROOT
from tests.support.ready_databases import put_ready_database
from tests.support.yaml_documents import format_documents

TERMS = {"include": ["*"], "trust": {"tier": "internal", "flags": []}, "onChange": "accept"}
SMALL = ROOT / "tests" / "projects" / "orders"


@dataclass
class Gateway:
    url: str
    """The MCP endpoint of the only catalogue."""
    running: App


def upstream(name: str, transport: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gateway/v1",
        "kind": "Upstream",
        "metadata": {"name": name, "owner": "team-orders"},
        "spec": {"transport": transport, "import": TERMS, **spec},
    }


def tool(
    name: str, *properties: str, upstream: str = "remote", remote: str | None = None, **spec: Any
) -> dict[str, Any]:
    """A tool of an upstream under its own name or another one. Arguments are strings, or numbers if named `a:int`."""
    types = {each.partition(":")[0]: "integer" if each.endswith(":int") else "string" for each in properties}
    schema = {"type": "object", "required": list(types), "properties": {key: {"type": t} for key, t in types.items()}}
    return {
        "apiVersion": "gateway/v1",
        "kind": "Tool",
        "metadata": {"name": name, "owner": "team-orders"},
        "spec": {
            "version": "1.0.0",
            "description": "What the server does.",
            "trust": {"tier": "internal", "flags": []},
            "input": {"schema": schema},
            "backend": {"type": "mcp", "upstream": upstream, "tool": remote or name},
            **spec,
        },
    }


def project(folder: Path, *documents: Mapping[str, Any], render: str = "plain") -> Path:
    """A project whose only catalogue has these tools."""
    shutil.copytree(SMALL, folder, ignore=shutil.ignore_patterns("tools.yaml"))
    gateway = folder / "configs" / "gateway.yaml"
    text = gateway.read_text().replace("publish: {path: /shop}", f"publish: {{path: /shop, render: {render}}}")
    gateway.write_text(text.replace("path: data/gateway.db", f"path: {folder}/data/gateway.db"))
    (folder / "configs" / "upstreams.yaml").write_text(format_documents(documents))
    put_ready_database(folder / "data" / "gateway.db")
    return folder


@asynccontextmanager
async def gateway(folder: Path, *, environ: Mapping[str, str] | None = None) -> AsyncIterator[Gateway]:
    settings = Settings.model_validate({"configs": folder})
    async with run_app(settings, environ=environ or {}) as started:
        both = build_asgi_apps(started, base_url="http://127.0.0.1", stopping=ShutdownSignal())
        try:
            async with serve_app(both.data) as origin:
                yield Gateway(f"{origin}/shop/mcp", started)
                both.close_streams()
        finally:
            await both.close()
