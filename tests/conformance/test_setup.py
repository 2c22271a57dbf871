"""The conformance project is valid, and its runner reports what is missing. The suite runs with `make conformance`."""

import os
import subprocess
import sys
from datetime import date
from pathlib import Path

from gateway.app.project import ProjectFolders, load_project
from tests.conformance import tools as conformance_tools
from tests.support.paths import ROOT

HERE = ROOT / "tests" / "conformance"


def test_project_has_no_problems_and_every_tool_its_function() -> None:
    environ = {
        "GATEWAY_DATA_DIR": "data",
        "GATEWAY_PYTHON_PACKAGES": conformance_tools.__name__,
        "EVERYTHING_URL": "http://127.0.0.1:9/mcp",
    }

    assembled = load_project(ProjectFolders.from_folder(HERE / "project"), environ=environ, today=date(2026, 11, 16))

    assert assembled.diagnostics == ()
    assert assembled.access is not None
    assert all(callable(getattr(conformance_tools, name)) for name in assembled.access.snapshot.tools)


def test_runner_reports_what_it_needs(tmp_path: Path) -> None:
    environ = {**os.environ, "PATH": str(tmp_path), "MCP_CONFORMANCE_HOME": str(tmp_path / "cache")}

    run = subprocess.run([sys.executable, HERE / "run.py"], env=environ, capture_output=True, text=True)

    assert run.returncode == 2
    assert "npm is not installed here" in run.stderr
    assert not (tmp_path / "cache").exists()
