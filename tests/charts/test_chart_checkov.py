"""Checkov over what the chart renders and over the Containerfile; it takes a minute to install, so it is asked for."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from charted import CASES, ROOT, rendered_text, with_packages

ASKED: Final = "GATEWAY_CHECKOV"
SKIPS: Final = Path(__file__).parent / "checkov.yaml"

pytestmark = pytest.mark.skipif(not os.environ.get(ASKED), reason=f"installs 290 MB: set {ASKED}=1 to run it")


def justified() -> set[tuple[str, str]]:
    skips = yaml.safe_load(SKIPS.read_text(encoding="utf-8"))
    assert all(len(skip["why"]) > 20 for skip in skips)
    return {(skip["check"], kind) for skip in skips for kind in skip["of"]}


def checked(folder: Path, *, framework: str) -> list[dict[str, Any]]:
    """Everything that failed."""
    program = with_packages("checkov", "checkov==3.3.30") / "checkov"
    command = [str(program), "-d", str(folder), "--framework", framework, "--skip-download", "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["passed"] > 0, "nothing was looked at"
    assert report["summary"]["parsing_errors"] == 0
    failed: list[dict[str, Any]] = report["results"]["failed_checks"]
    return failed


def test_everything_that_is_found_in_pods_is_justified(tmp_path: Path) -> None:
    for case in CASES:
        (tmp_path / f"{case}.yaml").write_text(rendered_text(case), encoding="utf-8")
    # The one case that asks not to be cut off gets what it asks for.
    (tmp_path / "ephemeral.yaml").unlink()
    found = {
        (each["check_id"], each["resource"].partition(".")[0]) for each in checked(tmp_path, framework="kubernetes")
    }

    assert found == {each for each in justified() if each[1] != "Containerfile"}


def test_everything_that_is_found_in_the_containerfile_is_justified(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Containerfile", tmp_path / "Dockerfile")

    found = {(each["check_id"], "Containerfile") for each in checked(tmp_path, framework="dockerfile")}

    assert found == {each for each in justified() if each[1] == "Containerfile"}
