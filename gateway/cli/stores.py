"""What commands that change a store share: which store it is, who asks, for how long, and how it ends.

They must work when it matters: also while the configuration has errors, and without one if the store is named.
"""

import asyncio
import os
import pwd
import re
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar

import typer

from gateway.cli.console import fail, note, out, print_json, print_table
from gateway.cli.project import assembled, project_at, secrets_of
from gateway.errors import GatewayError
from gateway.runtime.engines import PostgresAddress
from gateway.runtime.kept import kept_by
from gateway.snapshot import Snapshot

T = TypeVar("T")

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _duration(text: str | timedelta) -> timedelta:
    if isinstance(text, timedelta):
        return text
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None or not int(found[1]):
        raise typer.BadParameter("write a time as 30s, 15m, 2h or 7d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


Reason = Annotated[str, typer.Option(help="Why, in one line; it is kept.")]
For = Annotated[
    timedelta | None,
    typer.Option("--for", parser=_duration, metavar="TIME", help="How long: 30s, 15m, 2h, 7d.", show_default=False),
]
As = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="In whose name, besides the user of this machine.")
]
Database = Annotated[
    Path | None, typer.Option(help="The store itself, without asking a configuration.", show_default=False)
]
Output = Annotated[Literal["text", "json"], typer.Option("--format", "--output", help="For people, or for programs.")]


class Listed(Protocol):
    def as_data(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Store:
    """`snapshot` is what is configured, if that could be read."""

    path: Path | PostgresAddress
    snapshot: Snapshot | None = None


def print_all(found: Sequence[Listed], columns: Sequence[str], *, nothing: str, output: str) -> None:
    """What is in force, as a table or as JSON."""
    rows = [each.as_data() for each in found]
    if output == "json":
        print_json([dict(row) for row in rows])
    elif not rows:
        note(nothing)
    else:
        print_table(out(), columns, [[row[column] or "" for column in columns] for row in rows])


def store_of(folder: Path, policies: Path | None, *, environment: str | None, database: Path | None) -> Store:
    if database is not None:
        return Store(database)
    found = assembled(project_at(folder, policies), environment=environment, today=None)
    try:
        kept = kept_by(found).database
        secrets = secrets_of(folder, policies)
        path = kept if isinstance(kept, Path) else PostgresAddress(secrets.read(kept.connection))
    except (StopIteration, KeyError):
        fail("the configuration does not tell where records are kept", "name the store: --database PATH", code=1)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    if found.access is None:
        note("the configuration has errors, so names are not checked; gateway check shows them")
        return Store(path)
    return Store(path, found.access.snapshot)


def who(name: str | None) -> str:
    """The user of this machine, who is known, and the name that was given, which is only said."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user may have no name
        user = str(os.getuid())
    return f"os:{user}" if name is None else f"os:{user} as {name}"


def done(work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; what went wrong ends the command with code 1."""
    try:
        return asyncio.run(work)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
