"""Public third-party servers, started as programs behind the gateway: their tools, prompts and resources, governed.

Needs npm and Node, or pip; the servers are installed once, in fixed versions, into the user's cache folder.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import ElicitResult

from tests.backends.mcp.servers.front_gateway import TERMS, gateway, project, upstream
from tests.support.python_folders import PYTHON_FOLDERS

pytestmark = pytest.mark.anyio

VERSION = "2026.8.31"
PYTHON_VERSION = "2026.10.19"
NAMES = ("everything", "filesystem", "memory")
INSTALL_WITHIN = 300
ROWS = """
p, role:clerk, shop, prompt:*,   invoke, internal, allow
p, role:clerk, shop, resource:*, read,   internal, allow
"""


@pytest.fixture(scope="session")
def servers() -> Path:
    """The folder with the servers. Skips the test if they cannot be installed."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    packages = [f"@modelcontextprotocol/server-{name}@{VERSION}" for name in NAMES]
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    folder = install_servers(f"servers-{VERSION}", ["npm", "install", *options, *packages, "--prefix"])
    return folder / "node_modules" / "@modelcontextprotocol"


@pytest.fixture(scope="session")
def python_servers() -> Path:
    """The folder with the servers' packages. Skips the test if they cannot be installed."""
    packages = [f"mcp-server-{name}=={PYTHON_VERSION}" for name in ("git", "time")]
    return install_servers(
        f"servers-{PYTHON_VERSION}", [sys.executable, "-m", "pip", "install", "-q", *packages, "--target"]
    )


def install_servers(name: str, command: list[str]) -> Path:
    """A cache folder, created by a command that takes it as its last argument. Skips the test if that fails.

    It is created in a temporary place and moved, so that another run never finds half of it.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "agent-gateway-tests" / name
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(mkdtemp(dir=folder.parent))
    try:
        subprocess.run([*command, str(made)], check=True, capture_output=True, text=True, timeout=INSTALL_WITHIN)
        made.rename(folder)
    except (subprocess.SubprocessError, OSError) as error:
        shutil.rmtree(made, ignore_errors=True)
        if not folder.exists():
            pytest.skip(f"the servers cannot be installed: {type(error).__name__}")
    return folder


def server(
    servers: Path,
    name: str,
    *arguments: str,
    env: Any = None,
    writable: Path | None = None,
    readable: Sequence[str] = (),
) -> dict[str, Any]:
    node = str(Path(shutil.which("node") or "node").resolve())
    transport: dict[str, Any] = {
        "type": "stdio",
        "argv": [node, str(servers / f"server-{name}" / "dist" / "index.js"), *arguments],
        "env": env or {},
        "sandbox": {
            "readable": [str(servers.parents[1]), str(Path(node).parents[1]), *readable],
            "writable": [str(writable)] if writable else [],
        },
    }
    offers = {"prompts": ["*"], "resources": [{"name": "demo", "uris": ["demo://*"]}]} if name == "everything" else {}
    return upstream(name, transport, **{"import": {**TERMS, **offers}})


async def test_published_servers_work_behind_the_gateway(servers: Path, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    (shelf / "note.txt").write_text("water the plants")
    documents = [
        server(servers, "everything"),
        server(servers, "filesystem", str(shelf), readable=[str(shelf)]),
        server(servers, "memory", env={"MEMORY_FILE_PATH": str(shelf / "memory.jsonl")}, writable=shelf),
    ]
    made = project(tmp_path / "project", *documents)
    gateway_file = made / "configs" / "gateway.yaml"
    everything = '- {upstreams: ["*"]}'
    gateway_file.write_text(gateway_file.read_text().replace('- {tools: ["*"]}', everything))
    with (made / "policies" / "policy.csv").open("a") as policy:
        policy.write(ROWS)

    async def elicited(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"interpretation": "snake"})

    async with gateway(made) as started, Client(started.url, elicitation_callback=elicited) as client:
        echoed: Any = await client.call_tool("everything_echo", {"message": "hello"})
        read: Any = await client.call_tool("filesystem_read_text_file", {"path": str(shelf / "note.txt")})
        outside: Any = await client.call_tool("filesystem_read_text_file", {"path": "/etc/hostname"})
        refused: Any = await client.call_tool(
            "filesystem_write_file", {"path": str(shelf / "new.txt"), "content": "not in its sandbox"}
        )
        entity = {"name": "Ana", "entityType": "person", "observations": ["likes plants"]}
        await client.call_tool("memory_create_entities", {"entities": [entity]})
        graph: Any = await client.call_tool("memory_read_graph", {})
        meant: Any = await client.call_tool(
            "everything_simulate-research-query", {"topic": "python", "ambiguous": True}
        )
        prompts = [each.name for each in (await client.list_prompts()).prompts]
        prompt: Any = await client.get_prompt("everything_simple-prompt")
        resources = (await client.list_resources()).resources
        content = await client.read_resource(resources[0].uri)

    assert "hello" in echoed.content[0].text
    assert "water the plants" in read.content[0].text
    assert outside.is_error
    assert refused.is_error
    assert not (shelf / "new.txt").exists()
    assert "likes plants" in graph.content[0].text
    assert "Research Report: python (snake)" in meant.content[0].text  # the server runs it only as a task, and asks
    assert "everything_simple-prompt" in prompts
    assert prompt.messages
    assert resources[0].uri.startswith("demo://")
    assert content.contents


async def wait_for_tools(client: Client, *names: str) -> None:
    """Wait for a server that takes longer to start than the gateway waits for it."""
    with anyio.fail_after(60):
        while not set(names) <= {each.name for each in (await client.list_tools(cache_mode="bypass")).tools}:
            await anyio.sleep(0.1)


async def test_published_python_servers_work_behind_the_gateway(python_servers: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    git = ["git", "-c", "user.name=Ana", "-c", "user.email=ana@example.com"]
    subprocess.run([*git, "init", "-q", str(repository)], check=True)
    subprocess.run([*git, "-C", str(repository), "commit", "-q", "--allow-empty", "-m", "plant a tree"], check=True)
    env = {"PYTHONPATH": str(python_servers), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    env |= {"GIT_CONFIG_NOSYSTEM": "1"}  # git fails on a configuration that it finds and may not read
    documents = [
        upstream(
            name,
            {
                "type": "stdio",
                "argv": [sys.executable, "-m", f"mcp_server_{name}", *arguments],
                "env": env,
                "sandbox": {"readable": [*PYTHON_FOLDERS, str(python_servers), str(tmp_path)]},
            },
        )
        for name, arguments in (("git", ["--repository", str(repository)]), ("time", []))
    ]

    async with gateway(project(tmp_path / "project", *documents)) as started, Client(started.url) as client:
        await wait_for_tools(client, "git_git_log", "time_convert_time")
        log: Any = await client.call_tool("git_git_log", {"repo_path": str(repository)})
        elsewhere: Any = await client.call_tool("git_git_log", {"repo_path": str(tmp_path)})
        times = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        noon: Any = await client.call_tool("time_convert_time", times)

    assert "plant a tree" in log.content[0].text
    assert elsewhere.is_error
    assert "+9.0h" in noon.content[0].text
