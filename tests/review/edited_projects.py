"""The small project before and after an edit, planned as the command plans it."""

import shutil
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path

from gateway.assembly import Assembled, Project, assemble
from gateway.cli.sides import renaming, side
from gateway.review.plan import Plan, Side, make_plan

SMALL = Path(__file__).parent.parent / "projects" / "small"
TODAY = date(2026, 11, 16)
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)

Edits = Mapping[str, tuple[str, str]]
"""By file: a text that stands in it once, and what takes its place."""


def copied(folder: Path) -> Path:
    shutil.copytree(SMALL, folder)
    return folder


def edit(folder: Path, file: str, old: str, new: str) -> None:
    path = folder / file
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def assembled(folder: Path, *, environ: Mapping[str, str] | None = None, environment: str | None = None) -> Assembled:
    found = assemble(Project.at(folder), environ=environ or {}, today=TODAY, environment=environment)
    assert found.access is not None, [f"{each.position}: {each.message}" for each in found.diagnostics if each.is_error]
    return found


def side_of(
    folder: Path, *, shown_as: Path, environ: Mapping[str, str] | None = None, environment: str | None = None
) -> Side:
    found = assembled(folder, environ=environ, environment=environment)
    assert found.access is not None
    naming = renaming(Project.at(folder), Project.at(shown_as))
    return side(found, found.access, naming=naming, environment=environment)


def planned(
    before: Path, after: Path, *, environ: Mapping[str, str] | None = None, environment: str | None = None
) -> Plan:
    shown = Path()
    sides = (side_of(folder, shown_as=shown, environ=environ, environment=environment) for folder in (before, after))
    return make_plan(*sides, at=NOON, environment=environment)


def edited(tmp_path: Path, edits: Edits) -> Plan:
    """The plan from the small project to the same with some edits."""
    before, after = copied(tmp_path / "before"), copied(tmp_path / "after")
    for file, (old, new) in edits.items():
        edit(after, file, old, new)
    return planned(before, after)
