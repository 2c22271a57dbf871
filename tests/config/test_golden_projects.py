"""Broken projects: the text that people read about each problem, compared with golden files.

A case holds only the files in which it differs from the sound small project. `GATEWAY_UPDATE_GOLDEN=1` rewrites the
golden files; review the difference like any other change.
"""

import os
import re
import shutil
from datetime import date
from pathlib import Path

import pytest

from gateway.app.project import LoadedProject, ProjectFolders, load_project
from gateway.config.reports.diagnostic_codes import CODES
from gateway.config.reports.renderers import render_report
from gateway.registries.diagnostics import Diagnostic
from tests.support.paths import ROOT

TESTS = ROOT / "tests"
SMALL = TESTS / "projects" / "small"
GOLDEN = TESTS / "golden" / "projects"
CASES = sorted(path for path in GOLDEN.iterdir() if path.is_dir())
TODAY = date(2026, 11, 16)
SECRET = "s3cr3t-value"
ENVIRON = {"TOKEN": SECRET, "TOKEN_PATH": f"/{SECRET}", "GATEWAY_PYTHON_PACKAGES": "gateway.model"}
EXPECTED = "expected.txt"
WITHOUT_A_CASE = {
    # These need a folder, a file or a variable that a checkout cannot hold, or that is too large for one.
    *("missing-folder", "not-a-folder", "unreadable-folder", "unreadable-file", "link-outside", "no-documents"),
    *("file-too-large", "file-missing", "env-encoding", "env-limit"),
    "too-many-problems",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sound project; positions are relative to it."""
    shutil.copytree(SMALL, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load() -> LoadedProject:
    project = ProjectFolders(Path("configs"), Path("policies"))
    return load_project(project, environ=ENVIRON, today=TODAY, environment="prod")


def of_case(case: Path, project: Path) -> LoadedProject:
    shutil.copytree(case, project, dirs_exist_ok=True, ignore=shutil.ignore_patterns(EXPECTED))
    return load()


def points_at_a_token(diagnostic: Diagnostic) -> bool:
    """Whether the caret underlines less than the whole line."""
    position = diagnostic.position
    line = Path(position.file).read_text(encoding="utf-8").splitlines()[position.line - 1]
    return position.width < len(line.strip())


def test_project_that_the_cases_break_is_sound(here: Path) -> None:
    found = load()

    assert found.diagnostics == ()
    assert found.access is not None


def test_every_code_has_a_case_or_a_broken_source() -> None:
    kept = [path.read_text(encoding="utf-8") for path in GOLDEN.parent.rglob("*.txt")]
    seen = {
        code for text in kept for code in re.findall(r"^\S+:\d+:\d+: (?:warning: )?([a-z-]+): ", text, re.MULTILINE)
    }

    assert CODES.keys() - seen == WITHOUT_A_CASE
    assert len(CASES) >= 45


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_broken_project_gives_the_kept_text(case: Path, here: Path) -> None:
    found = of_case(case, here)

    shown = render_report(found.diagnostics, sources=lambda file: Path(file).read_text(encoding="utf-8"))

    kept = case / EXPECTED
    if os.environ.get("GATEWAY_UPDATE_GOLDEN"):
        kept.write_text(shown, encoding="utf-8")
    assert shown == kept.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_broken_project_is_reported_at_a_token_and_keeps_secrets(case: Path, here: Path) -> None:
    found = of_case(case, here)

    assert any(map(points_at_a_token, found.diagnostics))
    assert (found.access is None) == found.has_errors
    for each in found.diagnostics:
        assert SECRET not in f"{each.message} {each.help}"
        assert each.message[0].islower() or each.message[0] in "'\"$" or not each.message[0].isalpha()
        assert not each.message.endswith(".")
        assert "\n" not in each.message
