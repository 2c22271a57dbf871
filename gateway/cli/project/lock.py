"""`gateway lock`: pin the definitions of upstreams, so that no others are served.

Exit codes: 0 written, or with `--check` unchanged; 1 an error. `gateway drift` uses the same comparison with the lock.
"""

import asyncio
import difflib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from gateway.app import LoadedProject, ProjectFolders, UpstreamDefinitions, discover, open_connections
from gateway.cli.options import DEFAULT_FOLDER, EnvironmentOption, PoliciesOption, ProjectOption, UpstreamsOption
from gateway.cli.output import fail, print_line, print_note, print_problems, stderr, stdout
from gateway.cli.project_loader import find_project, load_with_environ, project_sources
from gateway.config import (
    LOCK_FILE,
    Lock,
    ToolDocument,
    UpstreamBackendSpec,
    UpstreamDocument,
    imports_tool,
    list_upstreams,
    propose_import_flags,
    render_lock,
    render_summary,
)
from gateway.errors import GatewayError
from gateway.model import NAME_REGEX
from gateway.registries import (
    ChangeSeverity,
    DefinitionChange,
    Proposal,
    UpstreamDefinition,
    compare_definitions,
    suggest_name,
)

_MARKS: Final[dict[ChangeSeverity, tuple[str, str]]] = {
    "high": ("!!", "bold red"),
    "medium": ("! ", "yellow"),
    "low": ("  ", "dim"),
}
_LONGEST: Final = 200
_SIGNS: Final = {"-": "red", "+": "green"}


def print_changes(console: Console, changes: Iterable[DefinitionChange]) -> None:
    about = ""
    for change in changes:
        if change.about != about:
            about = change.about
            print_line(console, (about, "bold"))
        mark, style = _MARKS[change.grade]
        print_line(console, f"  {mark} ", (change.words, style), (f"  {change.path}" if change.path else "", "dim"))
        if change.what.endswith("-changed") or change.what.startswith("schema-"):
            for sign, line in _diff_lines(change.before, change.after):
                print_line(console, "       ", (f"{sign} {line}", _SIGNS[sign]))


def _diff_lines(before: Any, after: Any) -> Iterator[tuple[str, str]]:
    old, new = _to_lines(before), _to_lines(after)
    for line in difflib.ndiff(old, new):
        if line[:1] in _SIGNS:
            text = line[2:]
            yield line[0], text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _to_lines(value: Any) -> list[str]:
    if value is None or value == "":
        return []
    return value.splitlines() if isinstance(value, str) else [json.dumps(value, ensure_ascii=True, default=str)]


@dataclass(frozen=True, slots=True)
class LockComparison:
    """A project, its locked definitions, and the current definitions of the chosen upstreams."""

    project: ProjectFolders
    assembled: LoadedProject
    chosen: tuple[str, ...]
    brought: tuple[UpstreamDefinitions, ...]

    @property
    def lock_file(self) -> Path:
        return self.project.configs / LOCK_FILE

    @property
    def locked(self) -> list[UpstreamDefinition]:
        return [each for each in self.assembled.lock.definitions if each.upstream in self.chosen]

    @property
    def found(self) -> list[UpstreamDefinition]:
        return [each for upstream in self.brought for each in upstream.definitions]


def compare_with_lock(
    folder: Path, policies: Path | None, environment: str | None, names: Sequence[str] | None
) -> LockComparison:
    """Ask the chosen upstreams. End the command if a document has errors or an upstream does not answer."""
    project = find_project(folder, policies)
    found = load_with_environ(project, environment=environment, today=datetime.now(UTC).date())
    _fail_invalid(found, project)
    upstreams = list_upstreams(found.loaded)
    for name in names or ():
        if name not in upstreams:
            known = ", ".join(sorted(upstreams)) or "none"
            fail(f"there is no upstream {name!r}", suggest_name(name, upstreams) or f"there are: {known}")
    chosen = tuple(sorted(set(names) if names else upstreams))
    answers = asyncio.run(_ask_upstreams(project, found, chosen, environment)) if chosen else []
    for each in answers:
        for line in each.unreadable:
            print_note(f"upstream {each.upstream.name}: {line}")
    return LockComparison(project, found, chosen, tuple(answers))


def _fail_invalid(found: LoadedProject, project: ProjectFolders) -> None:
    """End the command if a document has errors. Errors of the lock file do not count: a new lock fixes them."""
    lock = (project.configs / LOCK_FILE).as_posix()
    errors = [each for each in found.diagnostics if each.is_error and each.position.file != lock]
    if errors:
        print_problems(stderr(), errors, project_sources(project))
        print_line(stderr(), (render_summary(errors), "bold red"))
        raise typer.Exit(1)


async def _ask_upstreams(
    project: ProjectFolders, found: LoadedProject, names: Sequence[str], environment: str | None
) -> list[UpstreamDefinitions]:
    upstreams = list_upstreams(found.loaded)
    console = stderr()
    columns = (TextColumn("asking {task.description}"), BarColumn(), MofNCompleteColumn())
    answers: list[UpstreamDefinitions] = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("upstreams", total=len(names))
        async with open_connections(found, os.environ, project.configs) as backends:
            for name in names:
                bar.update(task, description=name)
                try:
                    answers.append(
                        await discover(
                            name, upstreams[name], found, backends, folder=project.configs, environment=environment
                        )
                    )
                except GatewayError as error:
                    bar.stop()
                    fail(
                        f"upstream {name}: {error.message}",
                        error.help or "choose other upstreams with --upstream",
                        code=1,
                    )
                bar.advance(task)
    return answers


def write_lock(
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    upstream: UpstreamsOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if the lock would change.")
    ] = False,
    confirm: Annotated[
        bool,
        typer.Option("--confirm", help="Serve definitions that are withheld because they changed and changed back."),
    ] = False,
) -> None:
    """Pin upstream definitions in gateway.lock: ask each upstream, show what changed, and write the file."""
    if check and confirm:
        fail("--check and --confirm cannot be combined", "--check writes nothing, so it cannot confirm")
    found = compare_with_lock(folder, policies, environment, upstream)
    lock = _renew_lock(found, only_some=bool(upstream), confirm=confirm)
    text = render_lock(lock)
    old = found.lock_file.read_text(encoding="utf-8", errors="replace") if found.lock_file.is_file() else ""
    print_changes(stderr() if check else stdout(), compare_definitions(found.locked, found.found))
    if check:
        _end_check(found.lock_file, old, text)
        return
    if text != old:
        _write(found.lock_file, text)
    _print_findings(found, environment)
    _print_proposals(found)
    count = len(lock.definitions)
    state = "is unchanged" if text == old else "is written"
    names = ", ".join(sorted(lock.upstreams)) or "none"
    print_line(
        stdout(), f"{found.lock_file} {state}: {count} definition{'' if count == 1 else 's'}, upstreams: {names}"
    )


def _renew_lock(found: LockComparison, *, only_some: bool, confirm: bool) -> Lock:
    lock = found.assembled.lock
    moment = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    for each in found.brought:
        known = lock.upstreams.get(each.upstream.name)
        earlier = None if known is None else known.confirmed
        confirmed = moment if confirm else earlier
        lock = lock.with_upstream(replace(each.upstream, confirmed=confirmed), each.definitions)
    return lock if only_some else lock.restrict_to(list_upstreams(found.assembled.loaded))


def _end_check(path: Path, old: str, new: str) -> None:
    if old == new:
        print_line(stdout(), ("✓", "green"), f" {path} matches the upstreams")
        return
    lines = difflib.unified_diff(
        old.splitlines(),
        new.splitlines(),
        fromfile=path.as_posix(),
        tofile="current definitions of the upstreams",
        lineterm="",
    )
    for line in lines:
        style = {"-": "red", "+": "green", "@": "cyan"}.get(line[:1], "")
        print_line(stdout(), (line, style))
    fail(f"{path} does not match the upstreams", "look at the difference, then run: gateway lock", code=1)


def _write(path: Path, text: str) -> None:
    """Replace the file atomically, so that no reader sees a part of it."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=".gateway.lock-", encoding="utf-8", delete=False
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(file.name, 0o644)  # like other files of the project: it holds no secret
        os.replace(file.name, path)
    except OSError as error:
        fail(f"{path} cannot be written: {(error.strerror or 'unknown').lower()}", code=1)


def _print_findings(found: LockComparison, environment: str | None) -> None:
    """Print the problems of the new lock file."""
    again = load_with_environ(found.project, environment=environment, today=datetime.now(UTC).date())
    lock = found.lock_file.as_posix()
    findings = [each for each in again.diagnostics if each.position.file == lock]
    if findings:
        print_problems(stderr(), findings, project_sources(found.project))


def _print_proposals(found: LockComparison) -> None:
    """Print proposed flags for tools without declared effects, as YAML to review. No file is written."""
    for upstream, proposals in _list_proposals(found):
        print_line(stdout())
        print_line(stdout(), f"# Upstream {upstream}: a proposal from the claims of its server and from names.")
        print_line(stdout(), "# It is not reviewed. Correct the flags, then write them below spec.import:")
        print_line(stdout(), "tools:")
        for each in proposals:
            print_line(stdout(), f"  {each.line}  # {each.because}")
        print_line(stdout())


def _list_proposals(found: LockComparison) -> Iterator[tuple[str, list[Proposal]]]:
    """Yield proposals by upstream, for imported tools that no Tool document publishes."""
    documents = [each.spec for each in found.assembled.loaded.documents]
    backends = [each.spec.backend for each in documents if isinstance(each, ToolDocument)]
    published = {(each.upstream, each.tool) for each in backends if isinstance(each, UpstreamBackendSpec)}
    specs = {each.metadata.name: each.spec for each in documents if isinstance(each, UpstreamDocument)}
    for current in found.brought:
        name = current.upstream.name
        imported = [
            each
            for each in current.definitions
            if each.kind == "tool"
            and imports_tool(each.name, specs[name].import_)
            and (name, each.name) not in published
            and re.fullmatch(NAME_REGEX, each.name)
        ]
        if proposals := propose_import_flags(specs[name], imported):
            yield name, proposals
