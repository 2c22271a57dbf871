"""`gateway test`: which policy cases of a project hold."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from gateway.assembly import Assembled, Project
from gateway.cli.case_reports import as_json, as_junit, place, print_results, summary
from gateway.cli.console import fail, out, print_document, print_line, print_table
from gateway.cli.project import (
    DEFAULT_FOLDER,
    Environment,
    Folder,
    Policies,
    Today,
    assembled,
    project_at,
    snapshot_of,
    sound,
)
from gateway.governance.cases import PolicyCase
from gateway.review.policy_tests import CaseResult, Coverage, actions_asked, coverage_of, run_cases


def run_tests(
    folder: Folder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    on: Today = None,
    filter: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only cases with this in their name, or in that of their suite.")
    ] = None,
    output: Annotated[
        Literal["text", "json", "junit"], typer.Option(help="For people, or for which program.")
    ] = "text",
    coverage: Annotated[
        bool,
        typer.Option("--coverage", help="List the rules that decided no case, and tools without one."),
    ] = False,
    fail_on_empty: Annotated[bool, typer.Option("--fail-on-empty", help="No case at all counts as a failure.")] = False,
) -> None:
    """Run the policy tests of a project. Exit code 0: all cases hold, 1: some do not, or the project has errors."""
    project = _project(folder, policies)
    found = sound(assembled(project, environment=environment, today=on), project)
    cases = _chosen(snapshot_of(found).cases, filter)
    results, covered = _run(found, cases, is_whole=filter is None)
    if output == "text":
        _print(found, results, covered, lists_coverage=coverage)
    else:
        print_document(as_json(results, covered) if output == "json" else as_junit(results), is_json=output == "json")
    if any(not result.passed for result in results) or (fail_on_empty and not results):
        raise typer.Exit(1)


def _project(folder: Path, policies: Path | None) -> Project:
    """The project; its folder of policies is another name for it, if `configs` is beside."""
    is_policies = policies is None and (folder / "model.conf").is_file() and not (folder / "configs").is_dir()
    if is_policies and (folder.parent / "configs").is_dir():
        return project_at(folder.parent, folder)
    return project_at(folder, policies)


def _chosen(cases: Sequence[PolicyCase], text: str | None) -> list[PolicyCase]:
    if text is None:
        return list(cases)
    wanted = text.casefold()
    chosen = [case for case in cases if wanted in case.name.casefold() or wanted in case.suite.casefold()]
    if not chosen:
        fail(f"no case, and no suite, has {text!r} in its name")
    return chosen


def _run(found: Assembled, cases: list[PolicyCase], *, is_whole: bool) -> tuple[list[CaseResult], Coverage | None]:
    """Coverage only of all cases together: of a few of them it would say that much is untested."""
    assert found.access is not None, "only sound projects are tested"  # noqa: S101 - `sound` has seen to it
    results = run_cases(found.access, cases)
    asked = actions_asked(found.access)
    rows = [row.position for row in found.policies.permissions if not asked.isdisjoint(row.actions.text.split("|"))]
    return results, coverage_of(found.access, results, rows=rows) if is_whole else None


def _print(found: Assembled, results: list[CaseResult], coverage: Coverage | None, *, lists_coverage: bool) -> None:
    console = out()
    if not results:
        print_line(console, "no policy tests; a document of kind PolicyTest holds cases")
        return
    print_results(console, results)
    if coverage is not None and lists_coverage:
        _print_coverage(found, coverage)
    print_line(console, summary(results, coverage))


def _print_coverage(found: Assembled, coverage: Coverage) -> None:
    snapshot = snapshot_of(found)
    idle = set(coverage.idle_rows)
    texts = {row.position: ", ".join(row.texts) for row in found.policies.permissions if row.position in idle}
    rows = [
        *((place(position), text) for position, text in texts.items()),
        *((place(snapshot.gates[name].position), f"GateRule {name}") for name in coverage.idle_rules),
        *((place(snapshot.tools[name].position), f"Tool {name}") for name in coverage.uncalled_tools),
    ]
    if rows:
        print_table(out(), ("no case is about", ""), rows)
