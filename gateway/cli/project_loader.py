"""The project that a command is about: find it, load it, and end the command if it has errors."""

import os
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import typer

from gateway.app import LoadedProject, ProjectFolders, Secrets, load_project
from gateway.cli.output import fail, print_line, print_problems, stderr
from gateway.config import SourceLines, list_files, render_summary
from gateway.registries import Snapshot


def find_project(folder: Path, policies: Path | None) -> ProjectFolders:
    """Return the project in a folder. End the command as wrong use if the folder does not exist."""
    if not os.path.lexists(folder):
        fail(f"there is no folder {folder}", "gateway init writes a project to start with")
    if policies is not None and not os.path.lexists(policies):
        fail(f"there is no folder {policies}")
    return ProjectFolders.from_folder(folder, policies=policies)


def load_with_environ(project: ProjectFolders, *, environment: str | None, today: date | None) -> LoadedProject:
    return load_project(project, environ=os.environ, today=today or datetime.now(UTC).date(), environment=environment)


def project_secrets(folder: Path, policies: Path | None) -> Secrets:
    """Return the secrets of a project, from the environment and from files below its configs."""
    return Secrets(os.environ, ProjectFolders.from_folder(folder, policies=policies).configs)


def project_sources(project: ProjectFolders) -> SourceLines:
    """Return a lookup of a file's text by the name that positions use."""
    folders: list[Callable[[str], str | None]] = [
        list_files(folder, prefix=folder.as_posix()) for folder in (project.configs, project.policies)
    ]
    return lambda file: next((text for source in folders if (text := source(file)) is not None), None)


def require_valid(found: LoadedProject, project: ProjectFolders) -> LoadedProject:
    """Return the project if it has no errors; otherwise print them and end the command."""
    if found.access is None:
        errors = [each for each in found.diagnostics if each.is_error]
        print_problems(stderr(), errors, project_sources(project))
        print_line(stderr(), (render_summary(errors), "bold red"))
        raise typer.Exit(1)
    return found


def require_snapshot(found: LoadedProject) -> Snapshot:
    assert found.access is not None, "only a valid project has a snapshot"  # noqa: S101 - `require_valid` checked it
    return found.access.snapshot
