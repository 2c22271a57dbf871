"""`gateway storage`: check a store; set up and fill the PostgreSQL database that gateways share; copy large results.

The connection comes from the project's Storage or from a variable, never from an argument, which others could read.
"""

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gateway.app import PostgresLocation, SpoolLocation, copy_all_results, load_postgres, locate_storage
from gateway.cli.operations.storage_check import check_store, read_address
from gateway.cli.options import DEFAULT_FOLDER, ConnectionEnvOption, EnvironmentOption, PoliciesOption, ProjectOption
from gateway.cli.output import fail, print_line, print_note, stdout
from gateway.cli.project_loader import find_project, load_with_environ, project_secrets
from gateway.cli.store_locator import run_or_fail
from gateway.errors import GatewayError

From = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="FOLDER", help="A spool of files that is copied into the project's.", show_default=False
    ),
]
To = Annotated[
    Path | None,
    typer.Option(
        "--to", metavar="FOLDER", help="Where the project's spool is copied to, as files.", show_default=False
    ),
]


def copy_results(
    source: From = None,
    target: To = None,
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
) -> None:
    """Copy large results into a bucket, or out of it. Existing copies are compared; nothing is deleted.

    Records stay as they are, since they do not name the place of a result. The command can be interrupted and repeated.

    Exit codes: 0 copied, 1 one of the two places cannot be used, or a copy differs, 2 wrong use.
    """
    if (source is None) == (target is None):
        fail("a source or a target is needed, not both", "give one of --from FOLDER and --to FOLDER")
    spool = _find_spool(folder, policies, environment)
    if source is not None:
        _require_folder(source)
        copy_spool(source, spool, folder, policies)
    elif target is not None:
        copy_spool(spool, target, folder, policies)


def copy_into_project(source: Path, folder: Path, policies: Path | None, environment: str | None) -> None:
    """Copy the results in a folder to the spool of the project, and print how many."""
    _require_folder(source)
    copy_spool(source, _find_spool(folder, policies, environment), folder, policies)


def copy_spool(source: SpoolLocation, target: SpoolLocation, folder: Path, policies: Path | None) -> None:
    if isinstance(source, Path) and isinstance(target, Path) and source.absolute() == target.absolute():
        fail("the source and the target are the same folder", "name another one")
    copied = run_or_fail(copy_all_results(source, target, project_secrets(folder, policies)))
    there = f"; {copied.already_there} existed already" if copied.already_there else ""
    print_line(stdout(), ("✓ ", "green"), f"copied {copied.pieces} large results, {copied.bytes} bytes{there}")


def _require_folder(source: Path) -> None:
    if not source.is_dir():
        fail(f"there is no folder {source}", "name the folder of a spool, such as data/spool")


def _find_spool(folder: Path, policies: Path | None, environment: str | None) -> SpoolLocation:
    try:
        return locate_storage(
            load_with_environ(find_project(folder, policies), environment=environment, today=None)
        ).spool
    except (StopIteration, KeyError):
        fail("the configuration does not name the storage of results", "run: gateway check")
    except GatewayError as error:
        fail(error.message, error.help, code=1)


app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Check a store; set up and fill a PostgreSQL database."
)


@app.command("migrate")
def migrate_database(
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    connection_env: ConnectionEnvOption = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Go back to this version, before an older gateway is started.", show_default=False
        ),
    ] = None,
) -> None:
    """Bring the database to the schema of this program, all steps or none. Gateways can keep running.

    Exit codes: 0 it has the schema now, 1 it cannot be reached or must not be changed, 2 wrong use.
    """
    address = _find_address(folder, policies, environment, connection_env)
    try:
        before, after = load_postgres().migrate_postgres(address, to=to)
    except GatewayError as error:
        _fail_with(error)
    became = f"already has version {after}" if before == after else f"went from {before or 'nothing'} to {after}"
    print_line(stdout(), ("✓ ", "green"), f"the database {became}")


app.command("check")(check_store)


@app.command("copy")
def copy_database(
    source: Annotated[Path, typer.Option("--from", metavar="PATH", help="The SQLite file; no gateway may run on it.")],
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    connection_env: ConnectionEnvOption = None,
    results: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Its spool, to be copied into the spool of the project."),
    ] = None,
) -> None:
    """Copy all of an SQLite store, or nothing, into an empty database that was set up with `migrate`.

    Large results are copied only if --results names their folder; they are copied first.

    Exit codes: 0 copied, 1 one of the two stores cannot be used, 2 wrong use.
    """
    address = _find_address(folder, policies, environment, connection_env)
    if results is not None:
        copy_into_project(results, folder, policies, environment)
    try:
        load_postgres().import_sqlite(source, address, told=lambda table, rows: print_note(f"{table}: {rows}"))
    except GatewayError as error:
        _fail_with(error)
    spool = "" if results is not None else "; results in the spool stay where they are"
    print_line(stdout(), ("✓ ", "green"), f"everything is copied{spool}")


app.command("copy-results")(copy_results)


def _find_address(folder: Path, policies: Path | None, environment: str | None, variable: str | None) -> str:
    if variable is not None:
        return read_address(variable)
    try:
        database = locate_storage(
            load_with_environ(find_project(folder, policies), environment=environment, today=None)
        ).database
        if isinstance(database, PostgresLocation):
            return project_secrets(folder, policies).read(database.connection)
    except (StopIteration, KeyError):
        fail("the configuration does not name the storage of records", "name the connection: --connection-env NAME")
    except GatewayError as error:
        _fail_with(error)
    fail("the Storage of the project is not a PostgreSQL database", "an SQLite file needs no setup")


def _fail_with(error: GatewayError) -> NoReturn:
    fail(error.message, error.help, code=1)
