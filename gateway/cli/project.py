"""What commands about a project share: where it is, whose overlay counts, which day it is, what is wrong with it."""

import os
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import typer

from gateway.assembly import Assembled, Project, assemble
from gateway.cli.console import err, fail, print_line
from gateway.cli.problems import print_problems
from gateway.config.folders import sources_in
from gateway.config.report import Sources, summary
from gateway.runtime.secrets import Secrets
from gateway.snapshot import Snapshot


def _day(text: str | date) -> date:
    try:
        return text if isinstance(text, date) else date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter("write a day as 2026-11-16") from None


Folder = Annotated[Path, typer.Argument(help="The project: a folder with configs and policies, or configs itself.")]
ProjectFolder = Annotated[
    Path, typer.Option("--project", "-p", help="The project: a folder with configs and policies, or configs itself.")
]
Policies = Annotated[
    Path | None, typer.Option(help="The folder of policies, if it is not the one beside configs.", show_default=False)
]
Environment = Annotated[str | None, typer.Option(envvar="GATEWAY_ENVIRONMENT", help="Whose overlay to apply.")]
Today = Annotated[
    date | None,
    typer.Option("--on", parser=_day, metavar="DAY", help="As of another day than today.", show_default=False),
]
DEFAULT_FOLDER = Path()


def project_at(folder: Path, policies: Path | None) -> Project:
    """The project in a folder. A folder that is not there is a wrong word on the command line, not a problem of it."""
    if not os.path.lexists(folder):
        fail(f"there is no folder {folder}", "gateway init writes a project to start with")
    if policies is not None and not os.path.lexists(policies):
        fail(f"there is no folder {policies}")
    return Project.at(folder, policies=policies)


def assembled(project: Project, *, environment: str | None, today: date | None) -> Assembled:
    return assemble(project, environ=os.environ, today=today or datetime.now(UTC).date(), environment=environment)


def secrets_of(folder: Path, policies: Path | None) -> Secrets:
    """Where a project's secrets are read from here."""
    return Secrets(os.environ, Project.at(folder, policies=policies).configs)


def sources_of(project: Project) -> Sources:
    """A file's text by the name that positions give it."""
    folders: list[Callable[[str], str | None]] = [
        sources_in(folder, prefix=folder.as_posix()) for folder in (project.configs, project.policies)
    ]
    return lambda file: next((text for source in folders if (text := source(file)) is not None), None)


def sound(found: Assembled, project: Project) -> Assembled:
    """The same, if it has no errors; otherwise they are shown and the command ends."""
    if found.access is None:
        errors = [each for each in found.diagnostics if each.is_error]
        print_problems(err(), errors, sources_of(project))
        print_line(err(), (summary(errors), "bold red"))
        raise typer.Exit(1)
    return found


def snapshot_of(found: Assembled) -> Snapshot:
    assert found.access is not None, "only sound projects have a snapshot"  # noqa: S101 - `sound` has seen to it
    return found.access.snapshot
