"""`gateway check`: every problem of a project in one run, and what the project holds if there is none."""

from collections import Counter
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Annotated, Literal

import typer
from rich.console import Console

from gateway.assembly import Assembled
from gateway.cli.console import out, print_document, print_line, print_pairs
from gateway.cli.problems import print_problems
from gateway.cli.project import DEFAULT_FOLDER, Environment, Folder, Policies, Today, assembled, project_at, sources_of
from gateway.config.report import render, summary
from gateway.snapshot import Snapshot


def check(
    folder: Folder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    on: Today = None,
    output: Annotated[
        Literal["text", "json", "github", "sarif", "junit"], typer.Option(help="For people, or for which program.")
    ] = "text",
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
) -> None:
    """Show every problem of a configuration and its policies. Exit code 0: none, 1: some."""
    began = perf_counter()
    project = project_at(folder, policies)
    found = assembled(project, environment=environment, today=on)
    is_refused = found.has_errors or (strict and bool(found.diagnostics))
    if output != "text":
        report = render(found.diagnostics, sources=sources_of(project), output=output)
        print_document(report, is_json=output in ("json", "sarif"))
    else:
        console = out()
        print_problems(console, found.diagnostics, sources_of(project))
        if console.is_terminal:
            _print_contents(console, found)
            _print_verdict(console, found, is_refused=is_refused, seconds=perf_counter() - began)
        else:
            print_line(console, _one_line(found))
    if is_refused:
        raise typer.Exit(1)


def _one_line(found: Assembled) -> str:
    """The same for the same project on every machine."""
    problems = summary(found.diagnostics)
    if found.access is None:
        return problems
    return f"{len(found.loaded.documents)} documents, {problems}, revision {found.access.snapshot.short_revision}"


def _print_contents(console: Console, found: Assembled) -> None:
    if found.access is not None:
        print_pairs(console, _contents(found, found.access.snapshot))
        console.print()


def _contents(found: Assembled, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    kinds = Counter(str(each.source.data["kind"]) for each in found.loaded.documents)
    yield "documents", f"{kinds.total()}: {_counted(kinds.items())}"
    yield "tools", str(len(snapshot.tools))
    yield "catalogues", _counted((name, len(each.tools)) for name, each in snapshot.catalogues.items())
    rows = found.policies
    yield "policies", f"{len(rows.permissions) + len(rows.members) + len(rows.objects)} rows"
    yield "tests", f"{len(snapshot.cases)} cases"
    yield "revision", snapshot.short_revision


def _counted(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts))


def _print_verdict(console: Console, found: Assembled, *, is_refused: bool, seconds: float) -> None:
    words = summary(found.diagnostics)
    sign = ("✗ ", "bold red") if is_refused else ("! ", "bold yellow") if found.diagnostics else ("✓ ", "bold green")
    print_line(console, sign, (words, sign[1]), (f" in {seconds:.1f} s", "dim"))
