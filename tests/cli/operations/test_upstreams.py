"""`gateway upstreams`: queries the servers directly, or asks a running gateway about them."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from tests.support.paths import ROOT
from tests.support.python_folders import PYTHON_FOLDERS

SMALL = ROOT / "tests" / "projects" / "small"

WIKI = """
apiVersion: gateway/v1
kind: Upstream
metadata: {{name: wiki, owner: team-docs}}
spec:
  transport: {{type: stdio, argv: ["{python}", -m, gateway.examples.wiki_server], sandbox: {{readable: {readable}}}}}
  import: {{include: [search_pages], trust: {{tier: internal, flags: []}}}}
---
apiVersion: gateway/v1
kind: Upstream
metadata: {{name: gone, owner: team-docs}}
spec:
  transport: {{type: streamable-http, url: "http://127.0.0.1:9/mcp"}}
  import: {{include: ["*"], trust: {{tier: internal, flags: []}}}}
"""


def upstreams(*words: str) -> Result:
    return CliRunner().invoke(app, ["upstreams", *words])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for path in SMALL.rglob("*"):
        if path.is_file():
            copy = folder / path.relative_to(SMALL)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    (folder / "configs" / "upstreams.yaml").write_text(
        WIKI.format(python=sys.executable, readable=json.dumps(PYTHON_FOLDERS))
    )
    return folder


def test_servers_are_asked_from_here(project: Path) -> None:
    result = upstreams("--probe", "--project", str(project), "--output", "json")

    gone, wiki = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (wiki["name"], wiki["state"], wiki["era"], wiki["tools"]) == ("wiki", "up", "legacy", 2)
    assert (gone["name"], gone["state"], gone["lastError"]) == ("gone", "down", "the service cannot be reached")


def test_table_shows_what_is_wrong(project: Path) -> None:
    result = upstreams("--probe", "--project", str(project))

    assert "the service cannot be reached" in result.stdout
    assert "legacy" in result.stdout


def test_gateway_that_does_not_run_is_reported() -> None:
    result = upstreams("--url", "http://127.0.0.1:9")

    assert result.exit_code == 1
    assert "no gateway answers" in result.stderr
