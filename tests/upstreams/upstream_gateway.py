"""A gateway in the loop of the test, in front of upstream servers."""

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from upstream_serving import listening

from gateway.runtime.planes import planes
from gateway.runtime.running import Running, running
from gateway.runtime.settings import Settings
from gateway.runtime.stopping import Stopping

TERMS = {"include": ["*"], "trust": {"tier": "internal", "flags": []}, "onChange": "accept"}
SMALL = Path(__file__).parent.parent / "projects" / "orders"


@dataclass
class Gateway:
    url: str
    """The MCP endpoint of the only catalogue."""
    running: Running


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
    """A tool of an upstream under its own name, or another one. Arguments are texts, or numbers if they say `a:int`."""
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
    (folder / "configs" / "upstreams.yaml").write_text(yaml.safe_dump_all(documents))
    return folder


@asynccontextmanager
async def gateway(folder: Path, *, environ: Mapping[str, str] | None = None) -> AsyncIterator[Gateway]:
    settings = Settings.model_validate({"configs": folder})
    async with running(settings, environ=environ or {}) as started:
        both = planes(started, base_url="http://127.0.0.1", stopping=Stopping())
        try:
            async with listening(both.data) as origin:
                yield Gateway(f"{origin}/shop/mcp", started)
                both.hush()
        finally:
            await both.close()
