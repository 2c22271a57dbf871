"""`gateway replay`: what a policy would have decided about recorded calls. No gateway needs to run.

Exit codes: 0 no difference, 2 differences, 1 a project has errors, an option is wrong, or records cannot be read. A
wrong option is 1 and not 2, so that a typing error does not look like a difference.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from gateway.app import InvalidBundle, LoadedProject, ProjectFolders, load_bundle, read_bundle, unpack_bundle
from gateway.cli.options import (
    DEFAULT_FOLDER,
    ConnectionEnvOption,
    EnvironmentOption,
    FolderArgument,
    OutputOption,
    PoliciesOption,
)
from gateway.cli.output import fail, parse_time, print_json, print_line, print_note, stdout
from gateway.cli.project.plan import STYLES, PlanCommand, open_older, require_project
from gateway.cli.project.plan_inputs import path_mapper
from gateway.cli.project.replay_inputs import (
    open_other_calls,
    open_project_calls,
    open_remote_calls,
    replay_with_progress,
)
from gateway.cli.project_loader import load_with_environ, require_valid
from gateway.model import to_microseconds
from gateway.policy import Access
from gateway.review import CallSelection, RecordedHistory, replay_data, replay_lines

_DEFAULT: Final = timedelta(days=7)
_EXAMPLES: Final = """
Examples:

gateway replay                                   this project, on the calls of the last 7 days

gateway replay --against main --since 30d        what changed since main, on a month of calls

gateway replay --candidate ../proposal           another project, on the records of this one

gateway replay --from log.jsonl --caller user:ana --output json
"""

app = typer.Typer(add_completion=False)


@app.command(cls=PlanCommand, epilog=_EXAMPLES)
def replay(
    folder: FolderArgument = DEFAULT_FOLDER,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|COMMIT",
            help="Compare with what this project decides, not with what was recorded.",
            show_default=False,
        ),
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Option(metavar="DIR|BUNDLE", help="Replay this project on the records of the other.", show_default=False),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            parser=parse_time, metavar="AGE|MOMENT", help="Only calls since then; by default 7d.", show_default=False
        ),
    ] = None,
    caller: Annotated[
        list[str] | None,
        typer.Option(metavar="SUBJECT", help="Only calls of this caller; may be given again.", show_default=False),
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only calls of this tool; may be given again.", show_default=False),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DATABASE|EXPORT",
            help="Records of an SQLite file, or of an exported decision log.",
            show_default=False,
        ),
    ] = None,
    connection_env: ConnectionEnvOption = None,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    output: OutputOption = "text",
) -> None:
    """Decide recorded calls again, and show which decisions differ. The default is the project as it is now.

    Exit code 0: no difference, 2: differences, 1: a project has errors, or records cannot be read.
    """
    _require_one(against=against, candidate=candidate)
    _require_one(**{"from": source, "connection-env": connection_env})
    moment = since or datetime.now(UTC) - _DEFAULT
    selection = CallSelection(to_microseconds(moment), frozenset(caller or ()), frozenset(tool or ()))
    project = require_project(folder, policies)
    with ExitStack() as closing:
        decides = project if candidate is None else closing.enter_context(_open_candidate(candidate, policies))
        naming = path_mapper(decides, decides)
        after, loaded = _load(decides, environment)
        before: Access | None = None
        if against is not None:
            older = closing.enter_context(open_older(project, against, policies))
            naming = path_mapper(older, project)
            before, _ = _load(older, environment)
        looks_back = after.depends_on_earlier_calls or (before is not None and before.depends_on_earlier_calls)
        if source is not None:
            opened = open_other_calls(source, selection, looks_back=looks_back)
        elif connection_env is not None:
            opened = open_remote_calls(connection_env, selection, looks_back=looks_back)
        else:
            recorded = loaded if candidate is None else _load(project, environment)[1]
            opened = open_project_calls(recorded, project, selection, looks_back=looks_back)
        history: RecordedHistory = closing.enter_context(opened)
        result = replay_with_progress(history, after, baseline=before, naming=naming, selection=selection)
    if output == "json":
        print_json(replay_data(result))
    else:
        for line in replay_lines(result):
            print_line(stdout(), *((span.text, STYLES[span.style]) for span in line))
    if result.groups:
        raise typer.Exit(2)


def _require_one(**given: object) -> None:
    names = [f"--{name}" for name, value in given.items() if value is not None]
    if len(names) > 1:
        fail(f"{' and '.join(names)} exclude each other", f"give {names[0]} or {names[1]}", code=1)


def _load(project: ProjectFolders, environment: str | None) -> tuple[Access, LoadedProject]:
    found = require_valid(load_with_environ(project, environment=environment, today=None), project)
    assert found.access is not None, "a valid project has its access"  # noqa: S101 - `require_valid` checked it
    return found.access, found


@contextmanager
def _open_candidate(place: str, policies: Path | None) -> Iterator[ProjectFolders]:
    """Open a folder or a bundle, whose signature is not checked: nothing of it is served."""
    if Path(place).is_dir():
        yield require_project(Path(place), None)
        return
    try:
        bundle = load_bundle(read_bundle(place))
        taken = unpack_bundle(bundle.contents, {}, content=b"", warning=None)
    except InvalidBundle as error:
        fail(error.message, error.help, code=1)
    print_note("the signature of the bundle was not verified: gateway bundle verify does that")
    try:
        yield taken.project
    finally:
        taken.release()
