"""`gateway plan`: what a change of a project means, compared with another folder or a commit.

Exit codes: 0 nothing changes, 2 something does, 1 anything else: a side with errors, a wrong option, or a risk above
what `--accept` names. A wrong option is 1 and not 2, so that no typing error passes for a plan.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from typer.core import TyperCommand

from gateway.access import Access
from gateway.assembly import Assembled, Project
from gateway.cli.console import err, fail, out, print_json, print_line
from gateway.cli.history import NotInHistory, project_in_commit
from gateway.cli.problems import print_problems
from gateway.cli.project import DEFAULT_FOLDER, Environment, Folder, Policies, Today, assembled, project_at, sources_of
from gateway.cli.sides import renamed_problem, renaming, side
from gateway.config.report import summary
from gateway.review.plan import Plan, Side, Tests, make_plan
from gateway.review.plan_data import plan_data
from gateway.review.plan_text import Style, plan_lines
from gateway.review.policy_tests import run_cases
from gateway.review.reach import Progress as Told
from gateway.review.risk import Weight, is_accepted

_USED_WRONGLY: Final = 2
_STYLES: Final[dict[Style, str]] = {
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


class _PlanCommand(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "exit_code", None) == _USED_WRONGLY:
                error.exit_code = 1  # type: ignore[attr-defined]  # usage errors have one; asked for above
            raise


app = typer.Typer(add_completion=False)


@app.command(cls=_PlanCommand)
def plan(
    folder: Folder = DEFAULT_FOLDER,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|COMMIT", help="What to compare with: a project's folder, or a commit.", show_default=False
        ),
    ] = None,
    policies: Policies = None,
    environment: Environment = None,
    on: Today = None,
    output: Annotated[Literal["text", "json"], typer.Option(help="For people, or for programs.")] = "text",
    accept: Annotated[
        Literal["low", "medium", "high"] | None,
        typer.Option(help="The gravest risk that is accepted; a graver one is exit code 1.", show_default=False),
    ] = None,
) -> None:
    """Show what a change means: documents, policy rows, who gains and loses which tool, controls that weaken, risk.

    Exit code 0: no changes, 2: changes, 1: a side has errors, or the risk is graver than --accept.
    """
    if not against:  # an empty one is a variable that was not set, not this folder
        fail("there is nothing to compare with", "give --against a folder or a commit", code=1)
    project = _project(folder, policies)
    today = on or datetime.now(UTC).date()
    with _older(project, against, policies) as older:
        made = _planned(older, project, against=against, environment=environment, today=today)
    _print(made, output=output, accept=accept)
    if accept is not None and not is_accepted(made.risk, accept):
        fail(f"the risk is {made.risk}, and only {accept} is accepted", f"give --accept {made.risk}", code=1)
    if not made.is_empty:
        raise typer.Exit(2)


def _project(folder: Path, policies: Path | None) -> Project:
    try:
        return project_at(folder, policies)
    except typer.Exit as ended:  # it has said why; 2 would say that there are changes
        raise typer.Exit(1) from ended


@contextmanager
def _older(project: Project, against: str, policies: Path | None) -> Iterator[Project]:
    """The project to compare with. A folder wins over a commit of the same name."""
    if "://" in against:
        fail("a running gateway cannot be compared with yet", "give a folder or a commit", code=1)
    if Path(against).is_dir():
        yield Project.at(Path(against), policies=_policies_in(Path(against), policies))
        return
    try:
        with project_in_commit(project, against) as older:
            yield older
    except NotInHistory as error:
        fail(error.message, error.help, code=1)


def _policies_in(folder: Path, policies: Path | None) -> Path | None:
    """The folder of policies under the same name, if it was named and is there."""
    same = folder / policies.name if policies else None
    return same if same and same.is_dir() else None


def _planned(older: Project, project: Project, *, against: str, environment: str | None, today: date) -> Plan:
    naming = renaming(older, project)
    before = assembled(older, environment=environment, today=today)
    after = assembled(project, environment=environment, today=today)
    if before.access is None or after.access is None:
        _print_errors(after, project, title="the project has errors", older=None)
        _print_errors(before, project, title=f"{against} has errors", older=older)
        _end_unsound(before, after, against=against)
    sides = (
        side(before, before.access, naming=naming, environment=environment),
        side(after, after.access, naming=lambda file: file, environment=environment),
    )
    return _compared(*sides, environment=environment, today=today, tests=_tests(after.access))


def _compared(before: Side, after: Side, *, environment: str | None, today: date, tests: Tests) -> Plan:
    at = datetime.combine(today, time(12), UTC)
    with _progress() as told:
        return make_plan(before, after, at=at, environment=environment, tests=tests, progress=told)


@contextmanager
def _progress() -> Iterator[Told | None]:
    """A bar on standard error, in a terminal only; it is gone when the work is done."""
    console = err()
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("comparing access"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("access", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _tests(access: Access) -> Tests:
    results = run_cases(access, access.snapshot.cases)
    passed = sum(result.passed for result in results)
    return Tests(passed, len(results) - passed)


def _print_errors(found: Assembled, project: Project, *, title: str, older: Project | None) -> None:
    errors = [each for each in found.diagnostics if each.is_error]
    if not errors:
        return
    print_line(err(), (f"{title}:", "bold red"))
    if older is None:
        print_problems(err(), errors, sources_of(project))
        return
    there, back = renaming(older, project), renaming(project, older)
    text_of = sources_of(older)
    print_problems(err(), [renamed_problem(each, there) for each in errors], lambda file: text_of(back(file)))


def _end_unsound(before: Assembled, after: Assembled, *, against: str) -> NoReturn:
    if after.access is None:
        errors = summary([each for each in after.diagnostics if each.is_error])
        fail(f"the project cannot be compared: {errors}", "gateway check shows them alone", code=1)
    help = "fix it there, or compare as of a day on which it was sound: --on DAY"
    fail(f"the project is sound, but {against} is not, so what changes cannot be told", help, code=1)


def _print(made: Plan, *, output: str, accept: Weight | None) -> None:
    if output == "json":
        print_json(plan_data(made, accepted=accept))
        return
    console = out()
    for line in plan_lines(made, accepted=accept):
        print_line(console, *((span.text, _STYLES[span.style]) for span in line))
