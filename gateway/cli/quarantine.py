"""`gateway quarantine`: stopping a tool, a caller or an upstream at once, in every process that serves.

It works on the store itself, whether or not a gateway runs on it.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from gateway.cli.console import fail, note, out, print_json, print_line
from gateway.cli.project import DEFAULT_FOLDER, Environment, Policies, ProjectFolder
from gateway.cli.stores import As, Database, For, Output, Reason, done, print_all, store_of, who
from gateway.governance.quarantines import InvalidQuarantine, Quarantine, QuarantineChange, Target
from gateway.runtime.engines import PostgresAddress
from gateway.runtime.quarantining import stops_of
from gateway.snapshot import Snapshot

T = TypeVar("T")

_COLUMNS: Final = ("target", "since", "until", "by", "reason")

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Stop a tool, a caller or an upstream at once.")

Named = Annotated[str, typer.Argument(metavar="TARGET", help="tool:NAME, principal:SUBJECT or upstream:NAME.")]


@app.command("add")
def add(
    target: Named,
    reason: Reason,
    period: For = None,
    name: As = None,
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    database: Database = None,
    output: Output = "text",
) -> None:
    """Stop it. When this returns, no process lets another call of it through.

    Exit codes: 0 stopped, 1 the store cannot be changed, 2 wrong use.
    """
    since = datetime.now(UTC)
    quarantine = _understood(
        lambda: Quarantine(Target.parse(target), reason, who(name), since, None if period is None else since + period)
    )
    store = store_of(folder, policies, environment=environment, database=database)
    if store.snapshot is not None and not _is_known(quarantine.target, store.snapshot):
        note(f"nothing is configured that is called {quarantine.target}; whatever is, later, will be stopped")

    async def change() -> QuarantineChange:
        async with stops_of(store.path) as stops:
            return await stops.add(quarantine)

    _tell(done(change()), output)


@app.command("lift")
def lift(
    target: Named,
    reason: Reason,
    name: As = None,
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    database: Database = None,
    output: Output = "text",
) -> None:
    """Let its calls through again, as far as policies and rules do.

    Exit codes: 0 lifted, 1 it was not quarantined or the store cannot be changed, 2 wrong use.
    """
    parsed = _understood(lambda: Target.parse(target))
    store = store_of(folder, policies, environment=environment, database=database)

    async def change() -> QuarantineChange:
        async with stops_of(store.path) as stops:
            return await stops.lift(parsed, reason=reason, by=who(name))

    _tell(done(change()), output)


@app.command("list")
def list_quarantines(
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    database: Database = None,
    output: Output = "text",
) -> None:
    """List what is stopped, oldest first.

    Exit codes: 0 listed, 1 the store cannot be read, 2 wrong use.
    """
    store = store_of(folder, policies, environment=environment, database=database)
    print_all(done(_listed(store.path)), _COLUMNS, nothing="nothing is quarantined", output=output)


async def _listed(database: Path | PostgresAddress) -> list[Quarantine]:
    async with stops_of(database) as stops:
        return await stops.quarantines.listed()


def _understood(parsing: Callable[[], T]) -> T:
    try:
        return parsing()
    except InvalidQuarantine as error:
        fail(error.message, error.help)


def _is_known(target: Target, snapshot: Snapshot) -> bool:
    """Of callers nobody knows all: issuers elsewhere name them."""
    match target.kind:
        case "tool":
            return target.name in snapshot.tools or target.name in snapshot.query_names
        case "upstream":
            return any(tool.upstream == target.name for tool in snapshot.tools.values())
        case "principal":
            return True


def _tell(change: QuarantineChange, output: Output) -> None:
    quarantine = change.quarantine
    if output == "json":
        data = {"action": change.action, **quarantine.as_data()}
        print_json(data)
        return
    until = quarantine.as_data()["until"]
    became = "is quarantined" if change.action == "add" else "is no longer quarantined"
    end = f" until {until}" if change.action == "add" and until else ""
    print_line(out(), ("✓ ", "green"), f"{quarantine.target} {became}{end}")
