"""JavaScript clients against a real gateway: both TypeScript SDKs, and the Inspector's command line.

Needs Node and npm; the libraries are installed once, pinned by hashes, into the user's cache folder. They include the
newer Node that the Inspector needs.
"""

import json
import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from tests.promises.transports.gateway import TOKENS
from tests.support.gateways.process import GatewayProcess

HERE = Path(__file__).parent / "node"
INSTALL_WITHIN = 300
INSPECTOR = Path("node_modules", "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js")


@pytest.fixture(scope="session")
def libraries() -> Path:
    """Return the folder with the libraries. Skips if they cannot be installed."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    lock = (HERE / "package-lock.json").read_bytes()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "agent-gateway-tests" / f"clients-{sha256(lock).hexdigest()[:16]}"
    if not folder.exists():
        install(folder)
    return folder


def install(folder: Path) -> None:
    """Install beside the target and move it there, so that another run never finds half of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(mkdtemp(dir=folder.parent))
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, made)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        subprocess.run(command, cwd=made, check=True, capture_output=True, text=True, timeout=INSTALL_WITHIN)
        made.rename(folder)
    except (subprocess.SubprocessError, OSError) as error:
        shutil.rmtree(made, ignore_errors=True)
        if not folder.exists():
            pytest.skip(f"the clients cannot be installed: {type(error).__name__}")


def run(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    quiet = {**os.environ, "NODE_NO_WARNINGS": "1"}
    return subprocess.run(command, cwd=folder, env=quiet, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="session")
def newer_node(libraries: Path) -> str:
    """Return a Node that is new enough for the Inspector."""
    found = [*sorted(libraries.glob("node_modules/node-*/bin/node")), Path(shutil.which("node") or "node")]
    for program in found:
        version = run([str(program), "--version"], libraries).stdout.strip().removeprefix("v")
        if version and [int(part) for part in version.split(".")[:2]] >= [22, 19]:
            return str(program)
    pytest.skip("the Inspector needs Node 22.19 or newer")


def body(text: str) -> str:
    return text.partition("\n")[2].rpartition("\n")[0]


@pytest.mark.parametrize(
    ("library", "mode"),
    [("sdk", "legacy"), ("client", "legacy"), ("client", "auto"), ("client", "2026-07-28")],
)
def test_typescript_client_goes_through_everything(
    gateway: GatewayProcess, libraries: Path, library: str, mode: str
) -> None:
    script = shutil.copy(HERE / "client.mjs", libraries / "client.mjs")  # Node finds libraries beside the script
    answer = run(["node", str(script), library, mode, gateway.mcp("/promises"), TOKENS["ana"]], libraries)

    assert answer.returncode == 0, answer.stderr
    seen = json.loads(answer.stdout)
    assert {"say", "report", "checked"} <= set(seen["tools"])
    assert ("artifact_grep" in seen["tools"]) == (mode != "legacy")
    assert body(seen["said"]) == "hello"
    assert seen["broken"][0] is True
    assert "the password" not in seen["broken"][1]
    assert body(seen["walked"]) == "walked"
    assert seen["steps"] == [1, 2, 3]
    assert seen["link"] == "resource_link"
    assert body(seen["grep"]) == "line 1"
    assert "no such tool" in seen["unknown"]


class Inspector:
    """Each use opens a new connection."""

    def __init__(self, gateway: GatewayProcess, libraries: Path, node: str, *, era: str) -> None:
        self._libraries = libraries
        self._command = [node, str(libraries / INSPECTOR), "--cli", gateway.mcp("/promises"), "--transport", "http"]
        self._command += ["--header", f"Authorization: Bearer {TOKENS['ana']}"]
        self._command += ["--protocol-era", era]

    def use(self, *options: str) -> Any:
        answer = run([*self._command, *options], self._libraries)
        assert answer.stdout, answer.stderr
        return json.loads(answer.stdout)

    def call(self, tool: str, **args: object) -> Any:
        given = [part for name, value in args.items() for part in ("--tool-arg", f"{name}={value}")]
        return self.use("--method", "tools/call", "--tool-name", tool, *given)


@pytest.mark.parametrize("era", ["legacy", "auto"])
def test_inspector_lists_and_calls(gateway: GatewayProcess, libraries: Path, newer_node: str, era: str) -> None:
    inspector = Inspector(gateway, libraries, newer_node, era=era)

    listed = inspector.use("--method", "tools/list")
    broken = inspector.call("broken")

    assert {"say", "report", "checked"} <= {tool["name"] for tool in listed["tools"]}
    assert broken["isError"] is True


def test_inspector_queries_an_artifact_from_another_connection(
    gateway: GatewayProcess, libraries: Path, newer_node: str
) -> None:
    """Without sessions: with them, each use of the command would be a separate turn."""
    inspector = Inspector(gateway, libraries, newer_node, era="modern")

    report = inspector.call("report", lines=3)
    grep = inspector.call("artifact_grep", callId=report["_meta"]["gateway/call"], pattern="line 1")

    assert body(grep["content"][0]["text"]) == "line 1"
