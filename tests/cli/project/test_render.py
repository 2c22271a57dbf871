"""`gateway render`, run as a user runs it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.gateways.commands import run_gateway
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
DAY = ("--on", "2026-11-16")


def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_gateway(*args, env={**os.environ, **environ})


def revision(*args: str) -> str:
    answer = run("check", *args, *DAY)
    found = re.search(r"revision ([0-9a-f]{12})", answer.stdout)
    assert found, answer.stdout
    return found[1]


@pytest.mark.parametrize(
    ("project", "environment"),
    [
        pytest.param(SMALL, [], id="small"),
        pytest.param(ROOT, [], id="example"),
        pytest.param(ROOT, ["--environment", "prod"], id="example-with-overlay"),
    ],
)
@pytest.mark.parametrize("origins", [pytest.param([], id="plain"), pytest.param(["--origins"], id="origins")])
def test_what_is_printed_loads_as_the_same_revision(
    tmp_path: Path, project: Path, environment: list[str], origins: list[str]
) -> None:
    shutil.copytree(project / "policies", tmp_path / "policies")
    (tmp_path / "configs").mkdir()
    if (lock := project / "configs" / "gateway.lock").exists():  # upstream definitions are pinned there
        shutil.copy(lock, tmp_path / "configs")

    answer = run("render", str(project), *environment, *origins, *DAY)
    (tmp_path / "configs" / "one.yaml").write_text(answer.stdout, encoding="utf-8")

    assert (answer.returncode, answer.stderr) == (0, "")
    assert revision(str(tmp_path)) == revision(str(project), *environment)


def test_origins_name_the_file_and_line_of_each_value() -> None:
    answer = run("render", str(SMALL), "--origins", *DAY)

    assert f"storage: main # {SMALL}/configs/gateway.yaml:7\n" in answer.stdout


def test_values_from_the_environment_are_not_printed() -> None:
    answer = run("render", str(ROOT), *DAY, GATEWAY_DATA_DIR="/srv/hunter2")

    assert answer.returncode == 0
    assert "${GATEWAY_DATA_DIR:-data}/gateway.db" in answer.stdout
    assert "hunter2" not in answer.stdout


def test_project_with_errors_is_not_printed(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: Tol\n", encoding="utf-8")

    answer = run("render", str(tmp_path))

    assert (answer.returncode, answer.stdout) == (1, "")
    assert "unknown-kind: there is no kind 'Tol'" in answer.stderr
    assert answer.stderr.endswith("4 errors\n")
