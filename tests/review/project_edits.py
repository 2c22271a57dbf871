"""The small project before and after an edit, planned as the command plans it."""

import shutil
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path

from gateway.app.project import LoadedProject, ProjectFolders, load_project
from gateway.cli.project.plan_inputs import make_plan_input, path_mapper
from gateway.review.plan.builder import Plan, PlanInput, build_plan
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
TODAY = date(2026, 11, 16)
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)

Edits = Mapping[str, tuple[str, str]]
"""By file: a text that occurs in it once, and its replacement."""


def copy_project(folder: Path) -> Path:
    shutil.copytree(SMALL, folder)
    return folder


def edit(folder: Path, file: str, old: str, new: str) -> None:
    path = folder / file
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def assembled(
    folder: Path, *, environ: Mapping[str, str] | None = None, environment: str | None = None
) -> LoadedProject:
    found = load_project(
        ProjectFolders.from_folder(folder), environ=environ or {}, today=TODAY, environment=environment
    )
    assert found.access is not None, [f"{each.position}: {each.message}" for each in found.diagnostics if each.is_error]
    return found


def side_of(
    folder: Path, *, shown_as: Path, environ: Mapping[str, str] | None = None, environment: str | None = None
) -> PlanInput:
    found = assembled(folder, environ=environ, environment=environment)
    assert found.access is not None
    naming = path_mapper(ProjectFolders.from_folder(folder), ProjectFolders.from_folder(shown_as))
    return make_plan_input(found, found.access, naming=naming, environment=environment)


def plan_edit(
    before: Path, after: Path, *, environ: Mapping[str, str] | None = None, environment: str | None = None
) -> Plan:
    shown = Path()
    sides = (side_of(folder, shown_as=shown, environ=environ, environment=environment) for folder in (before, after))
    return build_plan(*sides, at=NOON, environment=environment)


def edit_project(tmp_path: Path, edits: Edits) -> Plan:
    """The plan from the small project to the edited one."""
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for file, (old, new) in edits.items():
        edit(after, file, old, new)
    return plan_edit(before, after)
