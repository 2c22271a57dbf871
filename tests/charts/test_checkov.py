"""Checkov over the rendered chart and the Containerfile; runs only on request, as it takes a minute to install."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.charts.helm import CASES, rendered_text, with_packages
from tests.support.paths import ROOT

ASKED: Final = "GATEWAY_CHECKOV"
SKIPS: Final = Path(__file__).parent / "checkov.yaml"

pytestmark = pytest.mark.skipif(not os.environ.get(ASKED), reason=f"installs 290 MB: set {ASKED}=1 to run it")


def read_skips() -> set[tuple[str, str]]:
    skips = yaml.safe_load(SKIPS.read_text(encoding="utf-8"))
    assert all(len(skip["why"]) > 20 for skip in skips)
    return {(skip["check"], kind) for skip in skips for kind in skip["of"]}


def run_checkov(folder: Path, *, framework: str) -> list[dict[str, Any]]:
    """Return all failed checks."""
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
    # This case disables the network policy on purpose, so checkov would report it.
    (tmp_path / "ephemeral.yaml").unlink()
    found = {
        (each["check_id"], each["resource"].partition(".")[0]) for each in run_checkov(tmp_path, framework="kubernetes")
    }

    assert found == {each for each in read_skips() if each[1] != "Containerfile"}


def test_everything_that_is_found_in_the_containerfile_is_justified(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Containerfile", tmp_path / "Dockerfile")

    found = {(each["check_id"], "Containerfile") for each in run_checkov(tmp_path, framework="dockerfile")}

    assert found == {each for each in read_skips() if each[1] == "Containerfile"}
