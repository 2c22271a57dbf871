"""The `gateway` command. Each subcommand is one function; what it prints is for people unless it says JSON."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from gateway import __version__
from gateway.config.explain import UnknownField, explain
from gateway.config.folders import sources_in
from gateway.config.loader import load
from gateway.config.report import render
from gateway.config.schema import editor_schema
from gateway.core.canonical import call_id, canonical

app = typer.Typer(
    name="gateway",
    help="A declarative gateway between agents and the tools they call.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals may hold arguments of calls
)


def main() -> None:
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that stand before any subcommand."""


@app.command("call-id")
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


Folder = Annotated[Path, typer.Argument(help="The folder of YAML documents.")]


@app.command("check")
def check(
    folder: Folder = Path("configs"),
    environment: Annotated[
        str | None, typer.Option(envvar="GATEWAY_ENVIRONMENT", help="Whose overlay to apply.")
    ] = None,
    output: Annotated[
        Literal["text", "json", "github", "sarif", "junit"], typer.Option(help="For people, or for which program.")
    ] = "text",
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
) -> None:
    """Show every problem of a configuration. Exit code 0: none, 1: some."""
    loaded = load([folder], environ=os.environ, environment=environment)
    report = render(loaded.diagnostics, sources=sources_in(folder, prefix=folder.as_posix()), output=output)
    if output == "text" and not loaded.diagnostics:
        report = f"{len(loaded.documents)} documents, no problems\n"
    typer.echo(report, nl=not report.endswith("\n"))
    if loaded.has_errors or (strict and loaded.diagnostics):
        raise typer.Exit(1)


@app.command("explain")
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


@app.command("schema")
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


@app.command("env")
def list_environment(folder: Folder = Path("configs")) -> None:
    """List the environment variables a configuration reads: where, whether set, and the default. Never a value."""
    for use in load([folder], environ=os.environ).environment:
        state = "set" if use.is_set else "not set" if use.default is None else "default"
        typer.echo(f"{use.name:32} {state:8} {use.position}")
