"""`gateway check`: every problem of a project in one run, and a summary of a valid project."""

from collections import Counter
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Annotated, Literal

import typer
from rich.console import Console

from gateway.app import LoadedProject
from gateway.cli.options import DEFAULT_FOLDER, DayOption, EnvironmentOption, FolderArgument, PoliciesOption
from gateway.cli.output import print_document, print_line, print_pairs, print_problems, stdout
from gateway.cli.project_loader import find_project, load_with_environ, project_sources
from gateway.config import render_report, render_summary
from gateway.registries import Snapshot


def check(
    folder: FolderArgument = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    on: DayOption = None,
    output: Annotated[
        Literal["text", "json", "github", "sarif", "junit"],
        typer.Option(help="For people, or the format of a program."),
    ] = "text",
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
) -> None:
    """Show every problem of a configuration and its policies. Exit code 0: none, 1: some."""
    began = perf_counter()
    project = find_project(folder, policies)
    found = load_with_environ(project, environment=environment, today=on)
    is_refused = found.has_errors or (strict and bool(found.diagnostics))
    if output != "text":
        report = render_report(found.diagnostics, sources=project_sources(project), output=output)
        print_document(report, is_json=output in ("json", "sarif"))
    else:
        console = stdout()
        print_problems(console, found.diagnostics, project_sources(project))
        if console.is_terminal:
            _print_contents(console, found)
            _print_verdict(console, found, is_refused=is_refused, seconds=perf_counter() - began)
        else:
            print_line(console, _format_summary(found))
    if is_refused:
        raise typer.Exit(1)


def _format_summary(found: LoadedProject) -> str:
    """Return the summary, which is the same for the same project on every machine."""
    problems = render_summary(found.diagnostics)
    if found.access is None:
        return problems
    return f"{len(found.loaded.documents)} documents, {problems}, revision {found.access.snapshot.short_revision}"


def _print_contents(console: Console, found: LoadedProject) -> None:
    if found.access is not None:
        print_pairs(console, _contents(found, found.access.snapshot))
        console.print()


def _contents(found: LoadedProject, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    kinds = Counter(str(each.source.data["kind"]) for each in found.loaded.documents)
    yield "documents", f"{kinds.total()}: {_format_counts(kinds.items())}"
    yield "tools", str(len(snapshot.tools))
    yield "catalogues", _format_counts((name, len(each.tools)) for name, each in snapshot.catalogues.items())
    rows = found.policies
    yield "policies", f"{len(rows.permissions) + len(rows.members) + len(rows.objects)} rows"
    yield "tests", f"{len(snapshot.cases)} cases"
    yield "revision", snapshot.short_revision


def _format_counts(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts))


def _print_verdict(console: Console, found: LoadedProject, *, is_refused: bool, seconds: float) -> None:
    words = render_summary(found.diagnostics)
    sign = ("✗ ", "bold red") if is_refused else ("! ", "bold yellow") if found.diagnostics else ("✓ ", "bold green")
    print_line(console, sign, (words, sign[1]), (f" in {seconds:.1f} s", "dim"))
