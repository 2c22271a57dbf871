"""The `gateway` command and its list of subcommands.

A subcommand is registered with a name, one line of help and the place of its function. Its module is imported when it
runs, so that `--help`, `--version` and small commands start fast.

Exit codes: 0 success, 1 problems were found, 2 wrong use; `plan` and `replay` return 2 for changes.
"""

import gc
import sys
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from gateway import __version__


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A command. `place` is `module:name` of its function, or of its `typer.Typer` if it has subcommands."""

    name: str
    place: str
    summary: str


class _LazyCommand(TyperCommand):
    """Entry in the list of commands for a command that is not imported yet."""

    def __init__(self, subcommand: Subcommand) -> None:
        super().__init__(name=subcommand.name, help=subcommand.summary)
        self._subcommand = subcommand

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the real command, which is the command that typer then runs."""
        return load_command(self._subcommand).make_context(info_name, args, parent, **extra)


class LazyGroup(TyperGroup):
    """A group that lists its `subcommands` without importing them."""

    subcommands: ClassVar[tuple[Subcommand, ...]] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for subcommand in self.subcommands:
            self.add_command(_LazyCommand(subcommand))


def load_command(subcommand: Subcommand) -> TyperCommand | TyperGroup:
    module, _, name = subcommand.place.partition(":")
    found = getattr(import_module(module), name)
    app = found if isinstance(found, typer.Typer) else _make_app(found)
    command = get_command(app)
    assert isinstance(command, TyperCommand | TyperGroup)  # noqa: S101 - typer makes no others
    command.name = subcommand.name
    return command


def _make_app(function: Any) -> typer.Typer:
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return app


_COLLECT_AFTER = 100_000
"""Allocations before a garbage collection: most objects of a command live until it ends."""


class _Commands(LazyGroup):
    subcommands = (
        Subcommand("init", "gateway.cli.project.init:init", "Write a small project that works."),
        Subcommand(
            "serve", "gateway.cli.operations.serve:serve_gateway", "Serve the configured catalogues over MCP and REST."
        ),
        Subcommand(
            "status", "gateway.cli.operations.status:show_status", "Show what a running gateway serves, and since when."
        ),
        Subcommand(
            "reload", "gateway.cli.operations.status:reload_gateway", "Make a running gateway reload its project."
        ),
        Subcommand("bundle", "gateway.cli.project.bundle:app", "Build, sign and verify a project as one file."),
        Subcommand("calls", "gateway.cli.operations.calls:app", "Show the records of calls."),
        Subcommand(
            "trace", "gateway.cli.operations.trace:trace_call", "Draw one call: decisions, approvals, backend, times."
        ),
        Subcommand("approvals", "gateway.cli.operations.approvals:app", "Show approvals and decide them."),
        Subcommand(
            "quarantine",
            "gateway.cli.operations.quarantine:app",
            "Stop a tool, a caller or an upstream at once, everywhere.",
        ),
        Subcommand(
            "grant", "gateway.cli.operations.grant:app", "Request a role for a short time, approve and revoke grants."
        ),
        Subcommand("audit", "gateway.cli.operations.audit:app", "Verify and export the decision log."),
        Subcommand(
            "storage", "gateway.cli.operations.storage:app", "Check a store; set up and fill a PostgreSQL database."
        ),
        Subcommand("token", "gateway.cli.operations.token:app", "Make tokens for callers, and revoke them."),
        Subcommand(
            "check", "gateway.cli.project.check:check", "Show every problem of a configuration and its policies."
        ),
        Subcommand("test", "gateway.cli.project.test:run_tests", "Run the policy tests of a project."),
        Subcommand(
            "tools", "gateway.cli.project.tools:list_tools", "List the tools of a catalogue, or all catalogues."
        ),
        Subcommand(
            "upstreams", "gateway.cli.operations.upstreams:list_upstreams", "Show the state of the upstream servers."
        ),
        Subcommand("access", "gateway.cli.project.access:app", "Show who has what access, and who uses it; attest it."),
        Subcommand("plan", "gateway.cli.project.plan:app", "Show what a change means: access, controls, risk."),
        Subcommand(
            "report", "gateway.cli.project.report.command:app", "Write the review report, or verify its signature."
        ),
        Subcommand("replay", "gateway.cli.project.replay:app", "Decide recorded calls again under another policy."),
        Subcommand(
            "lock", "gateway.cli.project.lock:write_lock", "Pin upstream definitions, so that no others are served."
        ),
        Subcommand(
            "drift", "gateway.cli.project.drift:show_drift", "Show what upstreams changed since they were locked."
        ),
        Subcommand(
            "render", "gateway.cli.project.documents:render_project", "Print the effective configuration as one file."
        ),
        Subcommand("explain", "gateway.cli.project.explain:app", "Document a field, or explain a decision on a call."),
        Subcommand("env", "gateway.cli.project.env:list_environment", "List variables and secrets of a project."),
        Subcommand(
            "schema", "gateway.cli.project.documents:print_schema", "Print the JSON Schema of all kinds, for editors."
        ),
        Subcommand("call-id", "gateway.cli.project.call_id:print_call_id", "Print the checksum of a call."),
    )


app = typer.Typer(
    name="gateway",
    cls=_Commands,
    help="A declarative gateway between agents and the tools they call.",
    epilog="Exit codes: 0 all is well, 1 problems were found, 2 the command was used wrongly. "
    "plan and replay return 2 for changes.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,  # locals may hold arguments of calls
)


def main() -> None:
    gc.set_threshold(_COLLECT_AFTER)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an unprintable character must not end a report halfway
    app(prog_name="gateway")


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
    """Accept the options that stand before a subcommand."""
