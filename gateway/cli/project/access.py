"""`gateway access`: who may do what by which row, and who does it by the records of calls.

Without a store that can be read, use is unknown, and nothing is called unused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from typer.core import TyperCommand

from gateway.app import LoadedProject, Secrets, list_project_grants, load_project_usage
from gateway.cli.call_input import parse_caller
from gateway.cli.options import (
    DEFAULT_FOLDER,
    CallerOption,
    DayOption,
    EnvironmentOption,
    FolderArgument,
    OutputOption,
    PoliciesOption,
    RolesOption,
    parse_duration,
)
from gateway.cli.output import fail, print_json, print_line, print_note, stderr, stdout
from gateway.cli.project.access_tables import print_review, print_scope
from gateway.cli.project.end_notes import add_stored_grants
from gateway.cli.project_loader import find_project, load_with_environ, project_secrets, require_valid
from gateway.errors import GatewayError
from gateway.model import Principal
from gateway.policy import Access
from gateway.registries import Snapshot, suggest_name
from gateway.review import (
    AccessScopes,
    Callers,
    GrantAccess,
    UsageTable,
    access_data,
    digest_access,
    list_grant_access,
    list_owners,
    list_policy_rows,
    list_review_callers,
    review_access,
    scope_data,
)
from gateway.review import Progress as ProgressCallback

_PERIOD: Final = timedelta(days=30)
_ATTEST: Final = "attest"


class _AccessCommand(TyperCommand):
    """The command itself; `gateway access attest` is another one. A folder of that name is written ./attest."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args[:1] == [_ATTEST]:
            from gateway.cli.project.attest import app as attest  # a command of its own, which imports this module

            command = typer.main.get_command(attest)
            return command.make_context(f"{info_name} {_ATTEST}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


app = typer.Typer(add_completion=False)


@app.command(
    cls=_AccessCommand,
    epilog="gateway access --by role\n\n"
    "gateway access --unused 90d\n\n"
    "gateway access --as agent:release-bot --tool ticket_get\n\n"
    "gateway access --owner team-finance\n\n"
    "gateway access attest --owner team-finance --until 2027-03-31",
)
def show_access(
    folder: FolderArgument = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    on: DayOption = None,
    by: Annotated[
        Literal["caller", "tool", "role"], typer.Option(help="One line for each caller, tool or role.")
    ] = "caller",
    unused: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            help="Only access that was not used for so long: 30d.",
            show_default=False,
        ),
    ] = None,
    subject: CallerOption = None,
    roles: RolesOption = None,
    tool: Annotated[
        str | None, typer.Option(help="Only access to this tool, by its name in policies.", show_default=False)
    ] = None,
    owner: Annotated[
        str | None, typer.Option(help="The access that this owner attests, with its digest.", show_default=False)
    ] = None,
    output: OutputOption = "text",
) -> None:
    """Show who may call, read and approve what, by which row, and who does by the records of the last 30 days.

    gateway access attest writes the attestation of an owner into the project.

    Exit codes: 0 shown, 1 the configuration has errors, or use is unknown with --unused, 2 wrong use.
    """
    principal = parse_caller(subject, roles)
    project = find_project(folder, policies)
    found = require_valid(load_with_environ(project, environment=environment, today=on), project)
    access, at = project_access(found), noon_or_now(on)
    if owner is not None:
        require_owner(access.snapshot, owner)
        _show_scope(found, owner, at=at, output=output)
        return
    object = None if tool is None else _require_object(access.snapshot, tool)
    usage = _load_usage(found, folder, policies, since=at - (unused or _PERIOD))
    if usage is None and unused is not None:
        fail("nothing can be called unused without the records of calls", "name a project whose store exists", code=1)
    rows = list_policy_rows(found.policies, at)
    known = list_review_callers(access, rows, () if usage is None else usage.uses)
    chosen = known if principal is None else _choose_callers(known, principal)
    with show_progress("asking the policy") as progress:
        grants = None if usage is None else _list_grants(found, project_secrets(folder, policies), at)
        review = review_access(access, rows, at=at, usage=usage, callers=chosen, grants=grants, progress=progress)
    shown = review if object is None else review.only_about(object)
    if output == "json":
        print_json(access_data(shown))
    else:
        is_detailed = principal is not None or object is not None
        print_review(stdout(), shown, by=by, unused_only=unused is not None, is_detailed=is_detailed)


def project_access(found: LoadedProject) -> Access:
    assert found.access is not None, "a valid project has one"  # noqa: S101 - `require_valid` checked it
    return found.access


def noon_or_now(on: date | None) -> datetime:
    return datetime.now(UTC) if on is None else datetime.combine(on, time(12), UTC)


def require_owner(snapshot: Snapshot, owner: str) -> None:
    """End the command as wrong use if the owner owns nothing."""
    known = list_owners(snapshot)
    if owner not in known:
        help = suggest_name(owner, known) or f"owners: {', '.join(known) or 'none'}"
        fail(f"{owner!r} owns no published tool and no caller", help)


@contextmanager
def show_progress(words: str) -> Iterator[ProgressCallback | None]:
    """Show the progress of long work on standard error, on a terminal only; remove it at the end."""
    console = stderr()
    if not console.is_terminal:
        yield None
        return
    columns = (SpinnerColumn(), TextColumn(words), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _load_usage(found: LoadedProject, folder: Path, policies: Path | None, *, since: datetime) -> UsageTable | None:
    """Return the use that the store shows; `None`, with a note, if it cannot be read."""
    try:
        with show_progress("reading the records of calls"):
            return load_project_usage(found, project_secrets(folder, policies), since=since)
    except GatewayError as error:
        print_note(f"use is unknown: {error.message}")
        return None


def _list_grants(found: LoadedProject, secrets: Secrets, at: datetime) -> list[GrantAccess] | None:
    """Return the running grants of the store; `None`, with a note, if they cannot be read."""
    access, note = add_stored_grants(found, project_access(found), secrets, at)
    if note:
        print_note(note)
        return None
    grants = list_project_grants(found, secrets) if access.snapshot.grants else []
    return list_grant_access(access, grants, at)


def _require_object(snapshot: Snapshot, tool: str) -> str:
    """Return the name in policies of a tool, prompt or group of resources. End the command if there is none."""
    if tool in snapshot.tools:
        return snapshot.tools[tool].object
    if tool in snapshot.offers or tool.removeprefix("tool:") in snapshot.tools:
        return tool
    help = suggest_name(tool, [*snapshot.tools, *snapshot.offers]) or "gateway tools CATALOGUE lists them"
    fail(f"there is no tool {tool!r}", help)


def _choose_callers(known: Callers, principal: Principal) -> Callers:
    """Return the known callers of the subject, or the caller that was described if it has roles or is unknown."""
    if principal.roles:
        return {f"{principal.subject} as {', '.join(sorted(principal.roles))}": principal}
    found = {name: each for name, each in known.items() if each.subject == principal.subject}
    return found or {principal.subject: principal}


def _show_scope(found: LoadedProject, owner: str, *, at: datetime, output: str) -> None:
    scope = AccessScopes(project_access(found), list_policy_rows(found.policies, at), at=at).find(owner)
    digest = digest_access(scope)
    if output == "json":
        print_json({"owner": owner, "digest": digest, "access": [scope_data(each) for each in scope]})
        return
    print_scope(stdout(), scope)
    print_line(stdout(), ("digest ", "dim"), digest)
