"""`gateway upstreams`: how the servers behind a gateway stand, as it sees them, or as they are found from here."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from gateway.cli.console import fail, note, out, print_table
from gateway.cli.project import DEFAULT_FOLDER, Environment, Policies, ProjectFolder, assembled, project_at, sound
from gateway.cli.remote import Answered, Insecure, TokenFile, remote_at
from gateway.runtime.upstreams import probed_status

_COLUMNS: Final = ("name", "transport", "era", "version", "state", "tools", "withheld", "latency", "last error")
_COLOURS: Final = {"up": "green", "down": "bold red", "left out": "red", "not asked": "yellow"}
_DEFAULT_ADMIN: Final = "http://127.0.0.1:8081"

AdminUrl = Annotated[
    str, typer.Option("--url", envvar="GATEWAY_ADMIN_URL", help="Where the gateway's admin plane is.", metavar="URL")
]
Probe = Annotated[bool, typer.Option("--probe", help="Ask the servers of a project from here, without a gateway.")]
Output = Annotated[Literal["text", "json"], typer.Option(help="For people, or for programs.")]


def list_upstreams(
    probe: Probe = False,
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    admin_url: AdminUrl = _DEFAULT_ADMIN,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    output: Output = "text",
) -> None:
    """Show how the upstream servers stand: as a running gateway sees them or, with --probe, as they answer now.

    Exit codes: 0 all are up, 1 one is not, or cannot be asked about, 2 wrong use.
    """
    found = _probed(folder, policies, environment) if probe else _told(admin_url, token_file, insecure=insecure)
    if output == "json":
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
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
    try:
        status = remote_at(url, token_file, insecure=insecure).get("/status")
    except Answered as error:
        fail(error.detail, error.help, code=1)
    found = status.get("upstreams") if isinstance(status, dict) else None
    if not isinstance(found, list):
        fail(f"what answers at {url} is no admin plane", "say where it is with --url", code=1)
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
