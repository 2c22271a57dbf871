"""The `gateway` command. Each subcommand is one function; what it prints is for people unless it says JSON."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from gateway import __version__
from gateway.config.folders import sources_in
from gateway.config.loader import load
from gateway.config.report import render
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


@app.command("check")
def check(
    folder: Annotated[Path, typer.Argument(help="The folder of YAML documents.")] = Path("configs"),
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
