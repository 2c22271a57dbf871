"""`gateway drift`: what upstreams changed since the lock, or whether a running gateway serves this project.

Exit codes: 0 no difference, 2 a difference, 1 an error.
"""

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.client import GatewayClient, connect
from gateway.cli.operations.status import fetch_status
from gateway.cli.options import (
    DEFAULT_FOLDER,
    EnvironmentOption,
    InsecureOption,
    OutputOption,
    PoliciesOption,
    ProjectOption,
    TokenFileOption,
    UpstreamsOption,
)
from gateway.cli.output import print_json, print_line, print_note, stdout
from gateway.cli.project.lock import compare_with_lock, print_changes
from gateway.cli.project_loader import find_project, load_with_environ, require_snapshot, require_valid
from gateway.registries import compare_definitions, highest_severity


def show_drift(
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    upstream: UpstreamsOption = None,
    served: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Compare the project with the one served by the gateway at this admin URL."),
    ] = None,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    output: OutputOption = "text",
) -> None:
    """Show what upstreams changed since they were locked, graded. Exit code 0: nothing, 2: something, 1: an error.

    With --served, show instead whether a running gateway serves this project.
    """
    if served is not None:
        _compare_served(connect(served, token_file, insecure=insecure), folder, policies, environment, output=output)
        return
    found = compare_with_lock(folder, policies, environment, upstream)
    changes = compare_definitions(found.locked, found.found)
    if output == "json":
        data = {"risk": highest_severity(changes), "changes": [each.to_dict() for each in changes]}
        print_json(data, default=str)
    else:
        print_changes(stdout(), changes)
        names = ", ".join(found.chosen) or "none"
        print_line(stdout(), f"{len(changes)} change{'' if len(changes) == 1 else 's'} of upstreams: {names}")
    if changes:
        raise typer.Exit(2)


def _compare_served(
    remote: GatewayClient, folder: Path, policies: Path | None, environment: str | None, *, output: str
) -> None:
    project = find_project(folder, policies)
    here = require_snapshot(
        require_valid(load_with_environ(project, environment=environment, today=None), project)
    ).revision
    there = str(fetch_status(remote)["revision"])
    if output == "json":
        print_json({"served": there, "project": here, "same": here == there})
    elif here == there:
        print_line(stdout(), f"revision {here[:12]} is served")
    else:
        print_line(stdout(), f"revision {there[:12]} is served, this project is {here[:12]}")
        print_line(stdout(), "run gateway reload to serve it; gateway plan shows what changes")
        print_note("variables that the documents name are part of a revision: set them here as for the gateway")
    if here != there:
        raise typer.Exit(2)
