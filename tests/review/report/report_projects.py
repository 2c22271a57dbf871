"""The example project and edits of it, as inputs of a report."""

import os
import shutil
from collections.abc import Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Final

from gateway.app.project import ProjectFolders, load_project
from gateway.cli.project.plan_inputs import make_plan_input, path_mapper
from gateway.cli.project.report.inputs import make_report_input
from gateway.review.plan.builder import PlanInput
from gateway.review.report.report_data import ReportData, build_report, report_to_dict
from gateway.review.report.report_input import ReportInput
from tests.support.paths import ROOT

DAY: Final = date(2026, 11, 16)
ENVIRONMENT: Final = "prod"

Edits = Mapping[str, tuple[str, str]]
"""By file: a text that occurs in it once, and its replacement."""


def copy_example(folder: Path) -> Path:
    for name in ("configs", "policies"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def edit_files(folder: Path, edits: Edits) -> None:
    for file, (old, new) in edits.items():
        path = folder / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {file}"
        path.write_text(text.replace(old, new), encoding="utf-8")


def report_input(folder: Path, *, environment: str | None = ENVIRONMENT, commit: str | None = None) -> ReportInput:
    project = ProjectFolders.from_folder(folder)
    found = load_project(project, environ=os.environ, today=DAY, environment=environment)
    assert found.access is not None, [f"{each.position}: {each.message}" for each in found.diagnostics if each.is_error]
    return make_report_input(found, project, day=DAY, environment=environment, commit=commit)


def older_side(folder: Path, shown_as: Path) -> PlanInput:
    project = ProjectFolders.from_folder(folder)
    found = load_project(project, environ={}, today=DAY, environment=ENVIRONMENT)
    assert found.access is not None
    naming = path_mapper(project, ProjectFolders.from_folder(shown_as))
    return make_plan_input(found, found.access, naming=naming, environment=ENVIRONMENT)


def report_of(folder: Path) -> ReportData:
    return build_report(report_input(folder))


@cache
def example_report() -> ReportData:
    return report_of(ROOT)


def changed_sections(before: ReportData, after: ReportData) -> set[str]:
    """Return the sections that differ, without the revision, which always does, and the summary of the others."""
    one, other = report_to_dict(before), report_to_dict(after)
    assert one.keys() == other.keys()
    return {name for name in one if one[name] != other[name]} - {"revision", "summary"}


def section(report: ReportData, name: str) -> Any:
    return report_to_dict(report)[name]
