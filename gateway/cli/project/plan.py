"""`gateway plan`: what a change of a project means, compared with another folder or a commit.

Exit codes: 0 no changes, 2 changes, 1 a side has errors, an option is wrong, or the risk is above `--accept`. A wrong
option is 1 and not 2, so that a typing error does not look like a plan.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from typer.core import TyperCommand

from gateway.app import LoadedProject, ProjectFolders
from gateway.cli.options import (
    DEFAULT_FOLDER,
    DayOption,
    EnvironmentOption,
    FolderArgument,
    OutputOption,
    PoliciesOption,
)
from gateway.cli.output import fail, parse_time, print_json, print_line, print_problems, stderr, stdout
from gateway.cli.project.plan_inputs import (
    CommitUnreadable,
    checkout_project,
    make_plan_input,
    map_problem_path,
    path_mapper,
)
from gateway.cli.project.replay_inputs import open_project_calls, replay_with_progress
from gateway.cli.project_loader import find_project, load_with_environ, project_sources
from gateway.config import render_summary
from gateway.model import to_microseconds
from gateway.policy import Access
from gateway.review import (
    CallSelection,
    Plan,
    PlanInput,
    PolicyTestCounts,
    ReplayResult,
    Style,
    Weight,
    build_plan,
    is_accepted,
    plan_data,
    plan_lines,
    run_cases,
)
from gateway.review import Progress as ProgressCallback

_USED_WRONGLY: Final = 2
STYLES: Final[dict[Style, str]] = {
    "plain": "",
    "strong": "bold",
    "quiet": "dim",
    "added": "green",
    "removed": "red",
    "changed": "yellow",
    "low": "dim",
    "medium": "yellow",
    "high": "bold red",
    "good": "green",
    "bad": "bold red",
}


class PlanCommand(TyperCommand):
    """A command for which exit code 2 means changes: wrong use is 1."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "exit_code", None) == _USED_WRONGLY:
                error.exit_code = 1  # type: ignore[attr-defined]  # checked above: it has one
            raise


app = typer.Typer(add_completion=False)


@app.command(cls=PlanCommand)
def plan(
    folder: FolderArgument = DEFAULT_FOLDER,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|COMMIT", help="What to compare with: a project's folder, or a commit.", show_default=False
        ),
    ] = None,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    on: DayOption = None,
    output: OutputOption = "text",
    accept: Annotated[
        Literal["low", "medium", "high"] | None,
        typer.Option(help="The highest accepted risk; a higher one is exit code 1.", show_default=False),
    ] = None,
    replay: Annotated[
        datetime | None,
        typer.Option(
            parser=parse_time, metavar="AGE|MOMENT", help="Replay recorded calls since then: 7d.", show_default=False
        ),
    ] = None,
) -> None:
    """Show what a change means: documents, policy rows, who gains and loses which tool, controls that weaken, risk.

    Exit code 0: no changes, 2: changes, 1: a side has errors, or the risk is higher than --accept.
    """
    if not against:  # empty is an unset variable of a script, not this folder
        fail("there is nothing to compare with", "give --against a folder or a commit", code=1)
    project = require_project(folder, policies)
    today = on or datetime.now(UTC).date()
    with open_older(project, against, policies) as older:
        result = make_plan(older, project, against=against, environment=environment, today=today, since=replay)
    _print(result, output=output, accept=accept)
    if accept is not None and not is_accepted(result.risk, accept):
        fail(f"the risk is {result.risk}, and only {accept} is accepted", f"give --accept {result.risk}", code=1)
    if not result.is_empty:
        raise typer.Exit(2)


def require_project(folder: Path, policies: Path | None) -> ProjectFolders:
    try:
        return find_project(folder, policies)
    except typer.Exit as ended:  # the reason is printed; 2 would mean that there are changes
        raise typer.Exit(1) from ended


@contextmanager
def open_older(project: ProjectFolders, against: str, policies: Path | None) -> Iterator[ProjectFolders]:
    """Open the project to compare with. A folder takes precedence over a commit of the same name."""
    if "://" in against:
        fail("comparing with a running gateway is not supported", "give a folder or a commit", code=1)
    if Path(against).is_dir():
        yield ProjectFolders.from_folder(Path(against), policies=_policies_in(Path(against), policies))
        return
    try:
        with checkout_project(project, against) as older:
            yield older
    except CommitUnreadable as error:
        fail(error.message, error.help, code=1)


def _policies_in(folder: Path, policies: Path | None) -> Path | None:
    """Return the folder of policies with the same name in another project, if one was named and exists."""
    same = folder / policies.name if policies else None
    return same if same and same.is_dir() else None


def make_plan(
    older: ProjectFolders,
    project: ProjectFolders,
    *,
    against: str,
    environment: str | None,
    today: date,
    since: datetime | None = None,
) -> Plan:
    naming = path_mapper(older, project)
    before = load_with_environ(older, environment=environment, today=today)
    after = load_with_environ(project, environment=environment, today=today)
    if before.access is None or after.access is None:
        _print_errors(after, project, title="the project has errors", older=None)
        _print_errors(before, project, title=f"{against} has errors", older=older)
        _fail_invalid(before, after, against=against)
    sides = (
        make_plan_input(before, before.access, naming=naming, environment=environment),
        make_plan_input(after, after.access, naming=lambda file: file, environment=environment),
    )
    replayed = None
    if since is not None:
        selection = CallSelection(to_microseconds(since))
        with open_project_calls(after, project, selection, looks_back=True) as history:
            replayed = replay_with_progress(
                history, after.access, baseline=before.access, naming=naming, selection=selection
            )
    return _compare(*sides, environment=environment, today=today, tests=_count_tests(after.access), replay=replayed)


def _compare(
    before: PlanInput,
    after: PlanInput,
    *,
    environment: str | None,
    today: date,
    tests: PolicyTestCounts,
    replay: ReplayResult | None,
) -> Plan:
    at = datetime.combine(today, time(12), UTC)
    with _show_progress() as progress:
        return build_plan(before, after, at=at, environment=environment, tests=tests, replay=replay, progress=progress)


@contextmanager
def _show_progress() -> Iterator[ProgressCallback | None]:
    """Show a progress bar on standard error, on a terminal only; remove it at the end."""
    console = stderr()
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("comparing access"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("access", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _count_tests(access: Access) -> PolicyTestCounts:
    results = run_cases(access, access.snapshot.cases)
    passed = sum(result.passed for result in results)
    return PolicyTestCounts(passed, len(results) - passed)


def _print_errors(found: LoadedProject, project: ProjectFolders, *, title: str, older: ProjectFolders | None) -> None:
    errors = [each for each in found.diagnostics if each.is_error]
    if not errors:
        return
    print_line(stderr(), (f"{title}:", "bold red"))
    if older is None:
        print_problems(stderr(), errors, project_sources(project))
        return
    there, back = path_mapper(older, project), path_mapper(project, older)
    text_of = project_sources(older)
    print_problems(stderr(), [map_problem_path(each, there) for each in errors], lambda file: text_of(back(file)))


def _fail_invalid(before: LoadedProject, after: LoadedProject, *, against: str) -> NoReturn:
    if after.access is None:
        errors = render_summary([each for each in after.diagnostics if each.is_error])
        fail(f"the project cannot be compared: {errors}", "run gateway check to see them alone", code=1)
    help = "fix it there, or compare as of a day on which it had no errors: --on DAY"
    fail(f"the project is valid, but {against} has errors, so they cannot be compared", help, code=1)


def _print(result: Plan, *, output: str, accept: Weight | None) -> None:
    if output == "json":
        print_json(plan_data(result, accepted=accept))
        return
    console = stdout()
    for line in plan_lines(result, accepted=accept):
        print_line(console, *((span.text, STYLES[span.style]) for span in line))
