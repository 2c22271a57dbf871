"""The `gateway` command. Each subcommand is a function in one of the modules here.

Exit codes, everywhere: 0 all is well, 1 problems were found, 2 the command was used wrongly; `plan` answers 2 for
changes. What is printed is for people unless `--output` names a program's format.
"""

from typing import Annotated

import typer

from gateway import __version__
from gateway.cli.checking import check
from gateway.cli.reference import explain_field, list_environment, print_call_id, print_schema

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


app.command("check")(check)
app.command("explain")(explain_field)
app.command("schema")(print_schema)
app.command("env")(list_environment)
app.command("call-id")(print_call_id)
