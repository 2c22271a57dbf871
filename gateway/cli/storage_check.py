"""`gateway storage check`: whether a gateway can be served from a store, and whether anything in it is damaged."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from gateway.cli.console import err, fail, out, print_json, print_line, print_pairs
from gateway.cli.project import DEFAULT_FOLDER, Environment, Policies, ProjectFolder, assembled, project_at, secrets_of
from gateway.cli.stores import Output, done
from gateway.core.moments import clock
from gateway.errors import GatewayError
from gateway.runtime.engines import PostgresDatabase, postgres
from gateway.runtime.kept import kept_by
from gateway.runtime.secrets import Secrets
from gateway.runtime.spooling import SpoolPlace, open_spool, refuse_unusable
from gateway.storage.history import Elsewhere, Where, looking
from gateway.storage.integrity import Finding, Told, named_pieces, result_findings, sqlite_findings

Spool = tuple[SpoolPlace, Secrets]
"""Where large results are, if a project says so."""


def check_store(
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    connection_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The variable that has the connection, without asking a configuration.",
            show_default=False,
        ),
    ] = None,
    database: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="An SQLite file, without asking a configuration.", show_default=False),
    ] = None,
    output: Output = "text",
) -> None:
    """Tell whether a gateway of this version can be served from the store, and look for damage in all of it.

    Checks every page, index and foreign key of an SQLite file; every row and foreign key of a PostgreSQL database; and
    that large results which records name are there. Gateways go on meanwhile.

    Exit codes: 0 it can be served and is undamaged, 1 it cannot, or something is damaged, 2 wrong use.
    """
    if connection_env is not None and database is not None:
        fail("a store is named twice", "give one of --connection-env NAME and --database PATH")
    where, spool = _store(folder, policies, environment, connection_env, database)
    try:
        if isinstance(where, Path):
            told: dict[str, Any] = {"path": str(where)}
            with _progress() as progress:
                findings = sqlite_findings(where, told=progress)
            looked_at: Where = where
        else:
            told, findings = _of_postgres(where)
            looked_at = Elsewhere(partial(postgres().looking_at, where))
        if spool is not None and not any(each.where == "schema" for each in findings):
            told["results"], missing = done(_of_results(looked_at, *spool))
            findings += missing
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    _print(told, findings, output)
    if findings:
        is_old = all(each.where == "schema" for each in findings)
        fail(
            "the store is damaged, or of another version" if is_old else "the store is damaged",
            "run: gateway storage migrate, or restore a backup" if is_old else "restore a backup",
            code=1,
        )


def _print(told: dict[str, Any], findings: list[Finding], output: str) -> None:
    if output == "json":
        print_json({**told, "is_good": not findings, "findings": [asdict(each) for each in findings]})
        return
    shown = {name.replace("_", " "): str(value) for name, value in told.items() if value is not None}
    print_pairs(out(), [*shown.items()])
    for each in findings:
        print_line(out(), ("✗ ", "red"), f"{each.where}: {each.message}")
    if not findings:
        print_line(out(), ("✓ ", "green"), "nothing is damaged")


def _store(
    folder: Path, policies: Path | None, environment: str | None, variable: str | None, database: Path | None
) -> tuple[Path | str, Spool | None]:
    """The file or the address of the store, and its spool."""
    if variable is not None:
        return address_in(variable), None
    if database is not None:
        return _existing(database), None
    try:
        kept = kept_by(assembled(project_at(folder, policies), environment=environment, today=None))
        secrets = secrets_of(folder, policies)
        spool = (kept.spool, secrets)
        if isinstance(kept.database, PostgresDatabase):
            return secrets.read(kept.database.connection), spool
    except (StopIteration, KeyError):
        fail("the configuration does not tell where records are kept", "name the store: --database or --connection-env")
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    return _existing(kept.database), spool


def address_in(variable: str) -> str:
    """The connection that an environment variable has."""
    found = os.environ.get(variable)
    if not found:
        fail(f"the environment variable {variable} is not set", "put the connection of the database into it")
    return found


def _existing(path: Path) -> Path:
    if not path.exists():
        fail(
            f"there is no database {path}",
            "run this where the gateway runs: the path is relative to its folder",
            code=1,
        )
    return path


def _of_postgres(address: str) -> tuple[dict[str, Any], list[Finding]]:
    state = postgres().state_of(address)
    if not state.is_good:
        message = f"the version is {state.version or 'none'}, and this program needs {state.needed}"
        return asdict(state), [Finding("schema", message)]
    with _progress() as progress:
        return asdict(state), postgres().postgres_findings(address, told=progress)


async def _of_results(where: Where, place: SpoolPlace, secrets: Secrets) -> tuple[int, list[Finding]]:
    with looking(where) as connection:
        named = named_pieces(connection, at=clock(), is_sqlite=isinstance(where, Path))
        if isinstance(place, Path) and not place.is_dir():  # opening would make it, for the user of this command
            count = sum(1 for _ in named)
            return count, [Finding("results", f"the folder {place} of {count} results is gone")] if count else []
        refuse_unusable(place, secrets)
        spool = await open_spool(place, secrets, small=None)
        try:
            return await result_findings(named, spool.large)
        finally:
            await spool.close()


@contextmanager
def _progress() -> Iterator[Told]:
    """A bar on a terminal; nothing anywhere else."""
    console = err()
    columns = (TextColumn("checking"), BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        update: Callable[..., None] = bar.update
        yield lambda part, share: update(task, completed=share, description=part)
