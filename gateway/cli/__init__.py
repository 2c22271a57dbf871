"""The `gateway` command. Each subcommand is a function in one of the modules here, imported when it is run.

Exit codes, everywhere: 0 all is well, 1 problems were found, 2 the command was used wrongly; `plan` answers 2 for
changes. What is printed is for people unless `--output` names a program's format.
"""

import gc
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from gateway import __version__
from gateway.cli.lazy import LazyGroup, Subcommand

_COLLECT_AFTER = 100_000
"""A command ends before garbage matters, and most of what it makes stays to the end."""


class _Commands(LazyGroup):
    subcommands = (
        Subcommand("init", "gateway.cli.starting:init", "Write a small project that works."),
        Subcommand("serve", "gateway.cli.serving:serve_gateway", "Serve the configured catalogues over MCP and REST."),
        Subcommand("status", "gateway.cli.served:show_status", "Show what a running gateway serves, and since when."),
        Subcommand("reload", "gateway.cli.served:reload_gateway", "Have a running gateway serve what changed."),
        Subcommand("bundle", "gateway.cli.bundles:app", "Build, sign and verify a project as one file."),
        Subcommand("calls", "gateway.cli.calls:app", "Show the records of calls."),
        Subcommand("trace", "gateway.cli.tracing:trace_call", "Draw one call: decisions, approvals, backend, times."),
        Subcommand("approvals", "gateway.cli.approvals:app", "Show and decide what waits for approval."),
        Subcommand(
            "quarantine", "gateway.cli.quarantine:app", "Stop a tool, a caller or an upstream at once, everywhere."
        ),
        Subcommand("audit", "gateway.cli.audit:app", "Verify and export the decision log."),
        Subcommand("storage", "gateway.cli.storage:app", "Check a store; set up and fill a PostgreSQL database."),
        Subcommand("token", "gateway.cli.tokens:app", "Make tokens for callers, and revoke them."),
        Subcommand("check", "gateway.cli.checking:check", "Show every problem of a configuration and its policies."),
        Subcommand("test", "gateway.cli.testing:run_tests", "Run the policy tests of a project."),
        Subcommand("tools", "gateway.cli.listing:list_tools", "List the tools of a catalogue, or all catalogues."),
        Subcommand("upstreams", "gateway.cli.upstreams:list_upstreams", "Show how the upstream servers stand."),
        Subcommand("plan", "gateway.cli.planning:app", "Show what a change means: access, controls, risk."),
        Subcommand(
            "lock", "gateway.cli.locking:write_lock", "Pin what upstreams bring, so that nothing else is served."
        ),
        Subcommand("drift", "gateway.cli.drifting:show_drift", "Show what upstreams changed since they were locked."),
        Subcommand("render", "gateway.cli.rendering:render_project", "Print the effective configuration as one file."),
        Subcommand("explain", "gateway.cli.explaining:explaining", "Document a field, or tell what becomes of a call."),
        Subcommand("env", "gateway.cli.environment:list_environment", "List what a configuration reads from outside."),
        Subcommand("schema", "gateway.cli.reference:print_schema", "Print the JSON Schema of all kinds, for editors."),
        Subcommand("call-id", "gateway.cli.hashing:print_call_id", "Print the checksum of a call."),
    )


app = typer.Typer(
    name="gateway",
    cls=_Commands,
    help="A declarative gateway between agents and the tools they call.",
    epilog="Exit codes: 0 all is well, 1 problems were found, 2 the command was used wrongly. "
    "plan answers 2 for changes.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,  # locals may hold arguments of calls
)


def main() -> None:
    gc.set_threshold(_COLLECT_AFTER)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # no locale is a reason to end halfway through a report
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
    """Options that stand before any subcommand."""
