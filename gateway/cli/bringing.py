"""Asking upstreams what they bring, for commands that compare it with the lock: all that were chosen, or none."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from gateway.assembly import Assembled, Project
from gateway.cli.console import err, fail, note, print_line
from gateway.cli.problems import print_problems
from gateway.cli.project import assembled, project_at, sources_of
from gateway.config.lock_file import LOCK_FILE
from gateway.config.pins import upstreams_of
from gateway.config.report import summary
from gateway.errors import GatewayError
from gateway.governance.diagnostics import did_you_mean
from gateway.governance.imports import ImportedDefinition
from gateway.runtime.bringing import Brought, brought, reaching

Upstreams = Annotated[
    list[str] | None,
    typer.Option("--upstream", "-u", help="Only this upstream; may be given again.", show_default=False),
]


@dataclass(frozen=True, slots=True)
class Compared:
    """A project, what it has locked, and what the chosen upstreams bring now."""

    project: Project
    assembled: Assembled
    chosen: tuple[str, ...]
    brought: tuple[Brought, ...]

    @property
    def lock_file(self) -> Path:
        return self.project.configs / LOCK_FILE

    @property
    def locked(self) -> list[ImportedDefinition]:
        return [each for each in self.assembled.lock.definitions if each.upstream in self.chosen]

    @property
    def found(self) -> list[ImportedDefinition]:
        return [each for upstream in self.brought for each in upstream.definitions]


def compare(folder: Path, policies: Path | None, environment: str | None, names: Sequence[str] | None) -> Compared:
    """Ends the command with a line if a document is wrong or an upstream cannot be asked."""
    project = project_at(folder, policies)
    found = assembled(project, environment=environment, today=datetime.now(UTC).date())
    _end_unsound(found, project)
    upstreams = upstreams_of(found.loaded)
    for name in names or ():
        if name not in upstreams:
            known = ", ".join(sorted(upstreams)) or "none"
            fail(f"there is no upstream {name!r}", did_you_mean(name, upstreams) or f"there are: {known}")
    chosen = tuple(sorted(set(names) if names else upstreams))
    answers = asyncio.run(_asked(project, found, chosen, environment)) if chosen else []
    for each in answers:
        for line in each.unreadable:
            note(f"upstream {each.upstream.name}: {line}")
    return Compared(project, found, chosen, tuple(answers))


def _end_unsound(found: Assembled, project: Project) -> None:
    """Documents have to be right; what is wrong with the lock itself is what a new one mends."""
    lock = (project.configs / LOCK_FILE).as_posix()
    errors = [each for each in found.diagnostics if each.is_error and each.position.file != lock]
    if errors:
        print_problems(err(), errors, sources_of(project))
        print_line(err(), (summary(errors), "bold red"))
        raise typer.Exit(1)


async def _asked(project: Project, found: Assembled, names: Sequence[str], environment: str | None) -> list[Brought]:
    upstreams = upstreams_of(found.loaded)
    console = err()
    columns = (TextColumn("asking {task.description}"), BarColumn(), MofNCompleteColumn())
    answers: list[Brought] = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("upstreams", total=len(names))
        async with reaching(found, os.environ, project.configs) as backends:
            for name in names:
                bar.update(task, description=name)
                try:
                    answers.append(
                        await brought(
                            name, upstreams[name], found, backends, folder=project.configs, environment=environment
                        )
                    )
                except GatewayError as error:
                    bar.stop()
                    fail(
                        f"upstream {name}: {error.message}", error.help or "others can be asked with --upstream", code=1
                    )
                bar.advance(task)
    return answers
