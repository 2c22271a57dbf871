"""`gateway upstreams`: the state of the upstream servers, as a gateway sees them or as they answer from here."""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.app import probe_upstreams
from gateway.cli.client import connect
from gateway.cli.operations.status import fetch_status
from gateway.cli.options import (
    DEFAULT_ADMIN_URL,
    DEFAULT_FOLDER,
    AdminUrlOption,
    EnvironmentOption,
    InsecureOption,
    OutputOption,
    PoliciesOption,
    ProjectOption,
    TokenFileOption,
)
from gateway.cli.output import print_json, print_note, print_table, stdout
from gateway.cli.project_loader import find_project, load_with_environ, require_valid

_COLUMNS: Final = ("name", "transport", "era", "version", "state", "tools", "withheld", "latency", "last error")
_COLOURS: Final = {"up": "green", "down": "bold red", "left out": "red", "not asked": "yellow"}

Probe = Annotated[bool, typer.Option("--probe", help="Ask the servers of a project from here, without a gateway.")]


def list_upstreams(
    probe: Probe = False,
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    admin_url: AdminUrlOption = DEFAULT_ADMIN_URL,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    output: OutputOption = "text",
) -> None:
    """Show the state of the upstream servers: as a running gateway sees them or, with --probe, as they answer now.

    Exit codes: 0 all are up, 1 one is not up, or the gateway does not answer, 2 wrong use.
    """
    found = _probe(folder, policies, environment) if probe else _fetch(admin_url, token_file, insecure=insecure)
    if output == "json":
        print_json(found)
    elif found:
        print_table(stdout(), _COLUMNS, [_row(each) for each in found], colours=_COLOURS)
    else:
        print_note("there are no upstream servers")
    raise typer.Exit(0 if all(each.get("state") == "up" for each in found) else 1)


def _probe(folder: Path, policies: Path | None, environment: str | None) -> Sequence[Mapping[str, Any]]:
    project = find_project(folder, policies)
    loaded = require_valid(load_with_environ(project, environment=environment, today=None), project).loaded
    return asyncio.run(probe_upstreams(loaded, environ=os.environ, folder=project.configs))


def _fetch(url: str, token_file: Path | None, *, insecure: bool) -> Sequence[Mapping[str, Any]]:
    status = fetch_status(connect(url, token_file, insecure=insecure))
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
