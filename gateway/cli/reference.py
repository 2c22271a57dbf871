"""Commands that answer from the gateway itself: field documentation, the editor schema, call ids, the environment."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.project import DEFAULT_FOLDER, Folder, Policies, assembled, project_at
from gateway.config.explain import UnknownField, explain
from gateway.config.schema import editor_schema
from gateway.core.canonical import call_id, canonical


def print_call_id(
    tool: Annotated[str, typer.Argument(help="The tool's name.")],
    args: Annotated[str, typer.Argument(help="The arguments as a JSON object, or - to read it from standard input.")],
    show: Annotated[bool, typer.Option("--canonical", help="Print the canonical JSON that is hashed instead.")] = False,
) -> None:
    """Print the id of a call: the hash that joins its events, its record and its rendering."""
    text = sys.stdin.read() if args == "-" else args
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError(f"a JSON object is needed, not {type(value).__name__}")
        answer = canonical({"tool": tool, "args": value}) if show else call_id(tool, value)
    except (ValueError, RecursionError) as error:
        typer.echo(f"the arguments cannot be used: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(answer)


def explain_field(
    field: Annotated[str, typer.Argument(help="A kind, or a path into one: tool.spec.backend.")],
    recursive: Annotated[bool, typer.Option("--recursive", help="Everything below it, too.")] = False,
) -> None:
    """Document a field of a YAML kind: what it is for, what it takes, what it defaults to."""
    try:
        typer.echo(explain(field, recursive=recursive).rstrip("\n"))
    except UnknownField as error:
        typer.echo(f"{error.message}; {error.help}" if error.help else error.message, err=True)
        raise typer.Exit(2) from error


def print_schema(
    write: Annotated[Path | None, typer.Option(help="Write it to this file instead of printing it.")] = None,
) -> None:
    """Print the JSON Schema of all kinds, for editors."""
    text = json.dumps(editor_schema(), indent=2, ensure_ascii=False) + "\n"
    if write is None:
        typer.echo(text, nl=False)
        return
    try:
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"{write} cannot be written: {error.strerror}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"wrote {write}")


def list_environment(folder: Folder = DEFAULT_FOLDER, policies: Policies = None) -> None:
    """List the environment variables a configuration reads: where, whether set, and the default. Never a value."""
    for use in assembled(project_at(folder, policies), environment=None, today=None).loaded.environment:
        state = "set" if use.is_set else "not set" if use.default is None else "default"
        typer.echo(f"{use.name:32} {state:8} {use.position}")
