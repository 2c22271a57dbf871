"""Where the calls of a replay come from, and the progress of a replay."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.app import (
    LoadedProject,
    ProjectFolders,
    Secrets,
    load_postgres,
    open_exported_calls,
    open_recorded_calls,
    read_recorded_calls,
)
from gateway.cli.output import fail, stderr
from gateway.errors import GatewayError
from gateway.policy import Access
from gateway.review import CallSelection, RecordedHistory, ReplayResult, replay_calls
from gateway.storage import RemoteStore

_SQLITE: Final = b"SQLite format 3\0"
Naming = Callable[[str], str]


@contextmanager
def open_project_calls(
    found: LoadedProject, project: ProjectFolders, selection: CallSelection, *, looks_back: bool
) -> Iterator[RecordedHistory]:
    """Open the records of the project's store; end the command if they cannot be read."""
    secrets = Secrets(os.environ, project.configs)
    with _fail_on_error(), open_recorded_calls(found, secrets, selection, looks_back=looks_back) as history:
        yield history


@contextmanager
def open_other_calls(path: Path, selection: CallSelection, *, looks_back: bool) -> Iterator[RecordedHistory]:
    """Open the records of an SQLite file, or of an exported decision log."""
    if not path.is_file():
        fail(f"there is no file {path}", "name the SQLite file of a gateway, or an export of its log", code=1)
    with _fail_on_error():
        opened = (
            read_recorded_calls(path, selection, looks_back=looks_back)
            if _is_database(path)
            else open_exported_calls(path)
        )
        with opened as history:
            yield history


@contextmanager
def open_remote_calls(variable: str, selection: CallSelection, *, looks_back: bool) -> Iterator[RecordedHistory]:
    """Open the records of the PostgreSQL database whose connection is in an environment variable."""
    address = os.environ.get(variable)
    if not address:
        fail(f"the environment variable {variable} is not set", "set it to the connection of the database", code=1)
    with _fail_on_error():
        store = RemoteStore(partial(load_postgres().open_read_only_session, address))
        with read_recorded_calls(store, selection, looks_back=looks_back) as history:
            yield history


def replay_with_progress(
    history: RecordedHistory,
    candidate: Access,
    *,
    baseline: Access | None = None,
    naming: Naming = str,
    selection: CallSelection,
) -> ReplayResult:
    """Replay the calls, with a progress bar on standard error if that is a terminal."""
    replay = partial(replay_calls, history, candidate, baseline=baseline, baseline_naming=naming, selection=selection)
    console = stderr()
    if not console.is_terminal:
        return replay()
    columns = (TextColumn("replaying calls"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("calls", total=history.total)
        return replay(progress=lambda done: bar.update(task, completed=done))


@contextmanager
def _fail_on_error() -> Iterator[None]:
    try:
        yield
    except GatewayError as error:
        fail(error.message, error.help, code=1)


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        fail(f"{path} cannot be read ({error.strerror})", code=1)
