"""`gateway storage`: checking a store; setting up and filling the PostgreSQL database that gateways share.

The connection comes from the project's Storage, or from a variable; it is never an argument, which others could read.
"""

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gateway.cli.console import fail, note, out, print_line
from gateway.cli.project import DEFAULT_FOLDER, Environment, Policies, ProjectFolder, assembled, project_at, secrets_of
from gateway.cli.results import copy_into_project, copy_results
from gateway.cli.storage_check import address_in, check_store
from gateway.errors import GatewayError
from gateway.runtime.engines import PostgresDatabase, postgres
from gateway.runtime.kept import kept_by

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Check a store; set up and fill a PostgreSQL database."
)

ConnectionEnv = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The variable that has the connection, without asking a configuration.", show_default=False
    ),
]


@app.command("migrate")
def migrate_database(
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    connection_env: ConnectionEnv = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Back to an earlier version, before its program is started.", show_default=False
        ),
    ] = None,
) -> None:
    """Bring the database to the schema of this program, all steps or none. Gateways that run go on meanwhile.

    Exit codes: 0 it has the schema now, 1 it cannot be reached or must be left alone, 2 wrong use.
    """
    address = _address(folder, policies, environment, connection_env)
    try:
        before, after = postgres().migrate(address, to=to)
    except GatewayError as error:
        _failed(error)
    became = f"has version {after} already" if before == after else f"went from {before or 'nothing'} to {after}"
    print_line(out(), ("✓ ", "green"), f"the database {became}")


app.command("check")(check_store)


@app.command("copy")
def copy_database(
    source: Annotated[Path, typer.Option("--from", metavar="PATH", help="The SQLite file; no gateway may run on it.")],
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    connection_env: ConnectionEnv = None,
    results: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Its spool, to be copied to where the project keeps large results."),
    ] = None,
) -> None:
    """Copy everything from an SQLite store into an empty database that was set up: all of it, or nothing.

    Large results stay where they are, unless --results names their folder: then they are copied first.

    Exit codes: 0 copied, 1 one of the two cannot be used, 2 wrong use.
    """
    address = _address(folder, policies, environment, connection_env)
    if results is not None:
        copy_into_project(results, folder, policies, environment)
    try:
        postgres().copy_sqlite(source, address, told=lambda table, rows: note(f"{table}: {rows}"))
    except GatewayError as error:
        _failed(error)
    spool = "" if results is not None else "; results in the spool stay where they are"
    print_line(out(), ("✓ ", "green"), f"everything is copied{spool}")


app.command("copy-results")(copy_results)


def _address(folder: Path, policies: Path | None, environment: str | None, variable: str | None) -> str:
    if variable is not None:
        return address_in(variable)
    try:
        kept = kept_by(assembled(project_at(folder, policies), environment=environment, today=None)).database
        if isinstance(kept, PostgresDatabase):
            return secrets_of(folder, policies).read(kept.connection)
    except (StopIteration, KeyError):
        fail("the configuration does not tell where records are kept", "name the connection: --connection-env NAME")
    except GatewayError as error:
        _failed(error)
    fail("the Storage of the project is no PostgreSQL database", "an SQLite file is set up when it is opened")


def _failed(error: GatewayError) -> NoReturn:
    fail(error.message, error.help, code=1)
