"""`gateway upstreams`: how the servers behind a gateway stand, as it sees them, or as they are found from here."""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from gateway.cli.console import note, out, print_json, print_table
from gateway.cli.project import DEFAULT_FOLDER, Environment, Policies, ProjectFolder, assembled, project_at, sound
from gateway.cli.remote import Insecure, TokenFile, remote_at
from gateway.cli.served import DEFAULT_URL, AdminUrl, served_status
from gateway.runtime.upstreams import probed_status

_COLUMNS: Final = ("name", "transport", "era", "version", "state", "tools", "withheld", "latency", "last error")
_COLOURS: Final = {"up": "green", "down": "bold red", "left out": "red", "not asked": "yellow"}

Probe = Annotated[bool, typer.Option("--probe", help="Ask the servers of a project from here, without a gateway.")]
Output = Annotated[Literal["text", "json"], typer.Option(help="For people, or for programs.")]


def list_upstreams(
    probe: Probe = False,
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    admin_url: AdminUrl = DEFAULT_URL,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    output: Output = "text",
) -> None:
    """Show how the upstream servers stand: as a running gateway sees them or, with --probe, as they answer now.

    Exit codes: 0 all are up, 1 one is not, or cannot be asked about, 2 wrong use.
    """
    found = _probed(folder, policies, environment) if probe else _told(admin_url, token_file, insecure=insecure)
    if output == "json":
        print_json(found)
    elif found:
        print_table(out(), _COLUMNS, [_row(each) for each in found], colours=_COLOURS)
    else:
        note("there are no upstream servers")
    raise typer.Exit(0 if all(each.get("state") == "up" for each in found) else 1)


def _probed(folder: Path, policies: Path | None, environment: str | None) -> Sequence[Mapping[str, Any]]:
    project = project_at(folder, policies)
    loaded = sound(assembled(project, environment=environment, today=None), project).loaded
    return asyncio.run(probed_status(loaded, environ=os.environ, folder=project.configs))


def _told(url: str, token_file: Path | None, *, insecure: bool) -> Sequence[Mapping[str, Any]]:
    status = served_status(remote_at(url, token_file, insecure=insecure))
    found = status.get("upstreams") or ()
    withheld = Counter(each.get("upstream") for each in status.get("withheld") or () if isinstance(each, dict))
    return [{**each, "withheld": withheld[each.get("name")]} for each in found if isinstance(each, dict)]


def _row(each: Mapping[str, Any]) -> tuple[str, ...]:
    latency = each.get("latencyMs")
    texts = [each.get(key) for key in ("name", "transport", "era", "version", "state", "tools")]
    error = None if each.get("state") == "up" else each.get("lastError")
    return (
        *("" if text is None else str(text) for text in texts),
        str(each.get("withheld") or ""),
        "" if latency is None else f"{latency} ms",
        "" if error is None else str(error),
    )
