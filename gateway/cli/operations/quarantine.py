"""`gateway quarantine`: stop a tool, a caller or an upstream at once, in every serving process.

The commands change the store itself, whether or not a gateway runs on it.
"""

from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from gateway.cli.options import (
    DEFAULT_FOLDER,
    DatabaseOption,
    DurationOption,
    EnvironmentOption,
    OperatorOption,
    OutputOrFormatOption,
    PoliciesOption,
    ProjectOption,
    ReasonOption,
)
from gateway.cli.output import print_json, print_line, print_note, stdout
from gateway.cli.stop_list_access import find_store, operator_name, parse_stop, print_list, use_stop_list
from gateway.policy import Stop, StopChange, StopTarget
from gateway.registries import Snapshot

_COLUMNS: Final = ("target", "since", "until", "by", "reason")

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Stop a tool, a caller or an upstream at once.")

TargetArgument = Annotated[str, typer.Argument(metavar="TARGET", help="tool:NAME, principal:SUBJECT or upstream:NAME.")]


@app.command("add")
def add(
    target: TargetArgument,
    reason: ReasonOption,
    period: DurationOption = None,
    name: OperatorOption = None,
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    database: DatabaseOption = None,
    output: OutputOrFormatOption = "text",
) -> None:
    """Stop the target. When this returns, no process lets another of its calls through.

    Exit codes: 0 stopped, 1 the store cannot be changed, 2 wrong use.
    """
    since = datetime.now(UTC)
    until = None if period is None else since + period
    stop = parse_stop(lambda: Stop(StopTarget.parse(target), reason, operator_name(name), since, until))
    store = find_store(folder, policies, environment=environment, database=database)
    if store.snapshot is not None and not _is_configured(stop.target, store.snapshot):
        print_note(f"{stop.target} is not configured; the quarantine applies if it is configured later")
    _print_change(use_stop_list(store, lambda stops: stops.add(stop)), output)


@app.command("lift")
def lift(
    target: TargetArgument,
    reason: ReasonOption,
    name: OperatorOption = None,
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    database: DatabaseOption = None,
    output: OutputOrFormatOption = "text",
) -> None:
    """Let calls of the target through again, as far as policies and rules allow them.

    Exit codes: 0 lifted, 1 it was not quarantined or the store cannot be changed, 2 wrong use.
    """
    parsed = parse_stop(lambda: StopTarget.parse(target))
    store = find_store(folder, policies, environment=environment, database=database)
    change = use_stop_list(store, lambda stops: stops.lift(parsed, reason=reason, by=operator_name(name)))
    _print_change(change, output)


@app.command("list")
def list_quarantines(
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    database: DatabaseOption = None,
    output: OutputOrFormatOption = "text",
) -> None:
    """List the quarantines, oldest first.

    Exit codes: 0 listed, 1 the store cannot be read, 2 wrong use.
    """
    store = find_store(folder, policies, environment=environment, database=database)
    found = use_stop_list(store, lambda stops: stops.stops.list_stops())
    print_list(found, _COLUMNS, nothing="nothing is quarantined", output=output)


def _is_configured(target: StopTarget, snapshot: Snapshot) -> bool:
    """Whether the target is configured. Every principal counts as known: external issuers name them."""
    match target.kind:
        case "tool":
            return target.name in snapshot.tools or target.name in snapshot.query_names
        case "upstream":
            return any(tool.upstream == target.name for tool in snapshot.tools.values())
        case _:
            return True


def _print_change(change: StopChange, output: str) -> None:
    data = change.stop.to_dict()
    if output == "json":
        print_json({"action": change.action, **data})
        return
    became = "is quarantined" if change.action == "add" else "is no longer quarantined"
    end = f" until {data['until']}" if change.action == "add" and data["until"] else ""
    print_line(stdout(), ("✓ ", "green"), f"{change.stop.target} {became}{end}")
