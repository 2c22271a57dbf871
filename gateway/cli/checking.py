"""`gateway check`: every problem of a project in one run."""

from typing import Annotated, Literal

import typer

from gateway.cli.project import DEFAULT_FOLDER, Environment, Folder, Policies, Today, assembled, project_at, sources_of
from gateway.config.report import render


def check(
    folder: Folder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    on: Today = None,
    output: Annotated[
        Literal["text", "json", "github", "sarif", "junit"], typer.Option(help="For people, or for which program.")
    ] = "text",
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
) -> None:
    """Show every problem of a configuration and its policies. Exit code 0: none, 1: some."""
    project = project_at(folder, policies)
    found = assembled(project, environment=environment, today=on)
    report = render(found.diagnostics, sources=sources_of(project), output=output)
    if output == "text" and not found.diagnostics:
        report = f"{len(found.loaded.documents)} documents, no problems\n"
    typer.echo(report, nl=not report.endswith("\n"))
    if found.has_errors or (strict and found.diagnostics):
        raise typer.Exit(1)
