"""`gateway env`: what a configuration reads from outside itself. Never a value."""

import typer

from gateway.cli.project import DEFAULT_FOLDER, Folder, Policies, assembled, project_at


def list_environment(folder: Folder = DEFAULT_FOLDER, policies: Policies = None) -> None:
    """List what a configuration reads from outside: which variables, where, whether they are set. Never a value."""
    for use in assembled(project_at(folder, policies), environment=None, today=None).loaded.environment:
        state = "set" if use.is_set else "not set" if use.default is None else "default"
        typer.echo(f"{use.name:32} {state:8} {use.position}")
