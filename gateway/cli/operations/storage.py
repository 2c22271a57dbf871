"""`gateway storage`: check a store; set up and fill the PostgreSQL database that gateways share; copy large results.

The connection comes from the project's Storage or from a variable, never from an argument, which others could read.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from gateway.app import (
    PostgresLocation,
    Secrets,
    SpoolLocation,
    check_spool,
    copy_all_results,
    load_postgres,
    locate_storage,
    open_spool,
)
from gateway.cli.options import (
    DEFAULT_FOLDER,
    ConnectionEnvOption,
    DatabaseOption,
    EnvironmentOption,
    OutputOrFormatOption,
    PoliciesOption,
    ProjectOption,
)
from gateway.cli.output import fail, print_json, print_line, print_note, print_pairs, run_or_fail, stderr, stdout
from gateway.cli.project_loader import find_project, load_with_environ, project_secrets
from gateway.errors import GatewayError
from gateway.model import now_microseconds
from gateway.storage import (
    Finding,
    RemoteStore,
    StoreLocation,
    Told,
    iter_named_results,
    open_for_reading,
    result_findings,
    sqlite_findings,
)

Spool = tuple[SpoolLocation, Secrets]
"""Where large results are stored, and the secrets to read them."""


def check_store(
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    connection_env: ConnectionEnvOption = None,
    database: DatabaseOption = None,
    output: OutputOrFormatOption = "text",
) -> None:
    """Check whether a gateway of this version can serve from the store, and look for damage in all of it.

    Checks every page, index and foreign key of an SQLite file; every row and foreign key of a PostgreSQL database; and
    that large results which records name exist. Gateways can keep running.

    Exit codes: 0 the store can be served and is undamaged, 1 it cannot or is damaged, 2 wrong use.
    """
    if connection_env is not None and database is not None:
        fail("two stores are named", "give only one of --connection-env NAME and --database PATH")
    where, spool = _locate_store(folder, policies, environment, connection_env, database)
    try:
        if isinstance(where, Path):
            summary: dict[str, Any] = {"path": str(where)}
            with _progress() as progress:
                findings = sqlite_findings(where, told=progress)
            location: StoreLocation = where
        else:
            summary, findings = _check_postgres(where)
            location = RemoteStore(partial(load_postgres().open_read_only_session, where))
        if spool is not None and not any(each.where == "schema" for each in findings):
            summary["results"], missing = run_or_fail(_check_results(location, *spool))
            findings += missing
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    _print(summary, findings, output)
    if findings:
        is_old = all(each.where == "schema" for each in findings)
        fail(
            "the store is damaged, or of another version" if is_old else "the store is damaged",
            "run: gateway storage migrate, or restore a backup" if is_old else "restore a backup",
            code=1,
        )


def _print(summary: dict[str, Any], findings: list[Finding], output: str) -> None:
    if output == "json":
        print_json({**summary, "is_good": not findings, "findings": [asdict(each) for each in findings]})
        return
    shown = {name.replace("_", " "): str(value) for name, value in summary.items() if value is not None}
    print_pairs(stdout(), [*shown.items()])
    for each in findings:
        print_line(stdout(), ("✗ ", "red"), f"{each.where}: {each.message}")
    if not findings:
        print_line(stdout(), ("✓ ", "green"), "nothing is damaged")


def _locate_store(
    folder: Path, policies: Path | None, environment: str | None, variable: str | None, database: Path | None
) -> tuple[Path | str, Spool | None]:
    """Return the file or the address of the store, and its spool."""
    if variable is not None:
        return read_address(variable), None
    if database is not None:
        return _require_file(database), None
    try:
        storage = locate_storage(load_with_environ(find_project(folder, policies), environment=environment, today=None))
        secrets = project_secrets(folder, policies)
        spool = (storage.spool, secrets)
        if isinstance(storage.database, PostgresLocation):
            return secrets.read(storage.database.connection), spool
    except (StopIteration, KeyError):
        fail("the configuration does not name the storage of records", "name the store: --database or --connection-env")
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    return _require_file(storage.database), spool


def read_address(variable: str) -> str:
    """Return the connection that an environment variable holds."""
    found = os.environ.get(variable)
    if not found:
        fail(f"the environment variable {variable} is not set", "set it to the connection of the database")
    return found


def _require_file(path: Path) -> Path:
    if not path.exists():
        fail(
            f"there is no database {path}",
            "run this in the folder where the gateway runs: the path is relative to it",
            code=1,
        )
    return path


def _check_postgres(address: str) -> tuple[dict[str, Any], list[Finding]]:
    state = load_postgres().read_schema_state(address)
    if not state.is_good:
        message = f"the version is {state.version or 'none'}, and this program needs {state.needed}"
        return asdict(state), [Finding("schema", message)]
    with _progress() as progress:
        return asdict(state), load_postgres().postgres_findings(address, told=progress)


async def _check_results(where: StoreLocation, place: SpoolLocation, secrets: Secrets) -> tuple[int, list[Finding]]:
    with open_for_reading(where) as connection:
        named = iter_named_results(connection, at=now_microseconds(), is_sqlite=isinstance(where, Path))
        if isinstance(place, Path) and not place.is_dir():  # opening would create it, owned by the user of this command
            count = sum(1 for _ in named)
            return count, [Finding("results", f"the folder {place} of {count} results is gone")] if count else []
        check_spool(place, secrets)
        spool = await open_spool(place, secrets, small=None)
        try:
            return await result_findings(named, spool.large)
        finally:
            await spool.close()


@contextmanager
def _progress() -> Iterator[Told]:
    """Show a progress bar, on a terminal only."""
    console = stderr()
    columns = (TextColumn("checking"), BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        update: Callable[..., None] = bar.update
        yield lambda part, share: update(task, completed=share, description=part)


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
