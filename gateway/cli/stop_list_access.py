"""The store that a command reads or changes: where it is, who changes it, and what is printed.

These commands also work while the configuration has errors, and without a configuration if the store is named.
"""

import os
import pwd
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gateway.app import AuditedGrants, AuditedStopList, PostgresUrl, locate_storage, open_operator_store
from gateway.cli.output import fail, print_json, print_note, print_table, run_or_fail, stdout
from gateway.cli.project_loader import find_project, load_with_environ, project_secrets
from gateway.errors import GatewayError
from gateway.registries import Snapshot

T = TypeVar("T")


class Printable(Protocol):
    def to_dict(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class LocatedStore:
    """Where a store is. `snapshot` is that of the configuration, if one was read and is valid."""

    path: Path | PostgresUrl
    snapshot: Snapshot | None = None


def print_list(found: Sequence[Printable], columns: Sequence[str], *, nothing: str, output: str) -> None:
    """Print entries as a table or as JSON; `nothing` is the note if there are none."""
    rows = [each.to_dict() for each in found]
    if output == "json":
        print_json([dict(row) for row in rows])
    elif not rows:
        print_note(nothing)
    else:
        print_table(stdout(), columns, [[row[column] or "" for column in columns] for row in rows])


def find_store(folder: Path, policies: Path | None, *, environment: str | None, database: Path | None) -> LocatedStore:
    if database is not None:
        return LocatedStore(database)
    found = load_with_environ(find_project(folder, policies), environment=environment, today=None)
    try:
        place = locate_storage(found).database
        secrets = project_secrets(folder, policies)
        path = place if isinstance(place, Path) else PostgresUrl(secrets.read(place.connection))
    except (StopIteration, KeyError):
        fail("the configuration does not name the storage of records", "name the store: --database PATH", code=1)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    if found.access is None:
        print_note("the configuration has errors, so names are not checked; run gateway check to see them")
        return LocatedStore(path)
    return LocatedStore(path, found.access.snapshot)


def operator_name(name: str | None) -> str:
    """Return the user of this machine, which is verified, and the given name, which is not."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user may have no name
        user = str(os.getuid())
    return f"os:{user}" if name is None else f"os:{user} as {name}"


def parse_stop(parse: Callable[[], T]) -> T:
    """Return what `parse` makes of the command line. An error ends the command with exit code 2."""
    try:
        return parse()
    except GatewayError as error:
        fail(error.message, error.help)


def use_stop_list(store: LocatedStore, work: Callable[[AuditedStopList], Coroutine[Any, Any, T]]) -> T:
    """Run `work` on the stop list of a store."""

    async def run() -> T:
        async with open_operator_store(store.path) as opened:
            return await work(opened.stops)

    return run_or_fail(run())


def use_grants(store: LocatedStore, work: Callable[[AuditedGrants], Coroutine[Any, Any, T]]) -> T:
    """Run `work` on the grants of a store."""

    async def run() -> T:
        async with open_operator_store(store.path) as opened:
            return await work(opened.grants)

    return run_or_fail(run())
