"""`gateway drift`: what upstreams have changed since they were locked, or whether a project is what is served.

Exit codes: 0 nothing, 2 something, 1 anything else.
"""

import difflib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.console import Console

from gateway.cli.bringing import Upstreams, compare
from gateway.cli.console import note, out, print_json, print_line
from gateway.cli.project import (
    DEFAULT_FOLDER,
    Environment,
    Policies,
    ProjectFolder,
    assembled,
    project_at,
    snapshot_of,
    sound,
)
from gateway.cli.remote import Insecure, Remote, TokenFile, remote_at
from gateway.cli.served import served_status
from gateway.vetting.drift import Change, Grade, drift, gravest

_MARKS: Final[dict[Grade, tuple[str, str]]] = {
    "high": ("!!", "bold red"),
    "medium": ("! ", "yellow"),
    "low": ("  ", "dim"),
}
_LONGEST: Final = 200
_SIGNS: Final = {"-": "red", "+": "green"}


def show_drift(
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    upstream: Upstreams = None,
    served: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Compare the project with what the gateway at this admin plane serves."),
    ] = None,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    output: Annotated[Literal["text", "json"], typer.Option(help="For people, or for programs.")] = "text",
) -> None:
    """Show what upstreams changed since they were locked, graded. Exit code 0: nothing, 2: something, 1: an error.

    With --served, whether a running gateway serves this project, instead.
    """
    if served is not None:
        _compare_served(remote_at(served, token_file, insecure=insecure), folder, policies, environment, output=output)
        return
    found = compare(folder, policies, environment, upstream)
    changes = drift(found.locked, found.found)
    if output == "json":
        data = {"risk": gravest(changes), "changes": [each.as_data() for each in changes]}
        print_json(data, default=str)
    else:
        print_changes(out(), changes)
        names = ", ".join(found.chosen) or "none"
        print_line(out(), f"{len(changes)} change{'' if len(changes) == 1 else 's'} of upstreams: {names}")
    if changes:
        raise typer.Exit(2)


def _compare_served(
    remote: Remote, folder: Path, policies: Path | None, environment: str | None, *, output: str
) -> None:
    project = project_at(folder, policies)
    here = snapshot_of(sound(assembled(project, environment=environment, today=None), project)).revision
    there = str(served_status(remote)["revision"])
    if output == "json":
        print_json({"served": there, "project": here, "same": here == there})
    elif here == there:
        print_line(out(), f"revision {here[:12]} is served")
    else:
        print_line(out(), f"revision {there[:12]} is served, this project is {here[:12]}")
        print_line(out(), "gateway reload has it served; gateway plan tells what that means")
        note("variables that the documents name are part of a revision: set them here as they are set there")
    if here != there:
        raise typer.Exit(2)


def print_changes(console: Console, changes: Iterable[Change]) -> None:
    about = ""
    for change in changes:
        if change.about != about:
            about = change.about
            print_line(console, (about, "bold"))
        mark, style = _MARKS[change.grade]
        print_line(console, f"  {mark} ", (change.words, style), (f"  {change.path}" if change.path else "", "dim"))
        if change.what.endswith("-changed") or change.what.startswith("schema-"):
            for sign, line in _lines(change.before, change.after):
                print_line(console, "       ", (f"{sign} {line}", _SIGNS[sign]))


def _lines(before: Any, after: Any) -> Iterator[tuple[str, str]]:
    old, new = _text(before), _text(after)
    for line in difflib.ndiff(old, new):
        if line[:1] in _SIGNS:
            text = line[2:]
            yield line[0], text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _text(value: Any) -> list[str]:
    if value is None or value == "":
        return []
    return value.splitlines() if isinstance(value, str) else [json.dumps(value, ensure_ascii=True, default=str)]
