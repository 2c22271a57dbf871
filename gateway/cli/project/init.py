"""`gateway init`: write a small working project, all of it or nothing."""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Annotated, Final

import typer
from rich.text import Text
from rich.tree import Tree

from gateway.cli.output import fail, print_line, stdout
from gateway.config import build_editor_schema, escape_invisible

Files = Mapping[PurePosixPath, str]

_SCHEMA: Final = PurePosixPath("configs/.schema/gateway.v1.json")
_RENAMED: Final = {PurePosixPath("gitignore"): PurePosixPath(".gitignore")}
"""Git would apply a template with its real name to this repository."""


def init(
    folder: Annotated[Path, typer.Argument(help="Where to write it; the folder is created if it is missing.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a small project that works: tools, trust, a gate, policies and their tests."""
    project = _project_files()
    _fail_if_in_the_way(folder, project, force=force)
    try:
        _write(folder, project)
    except OSError as error:
        fail(f"{folder} cannot be written: {(error.strerror or 'unknown reason').lower()}", code=1)
    _print_written(folder, project)


def _project_files() -> Files:
    written = dict(_texts(files("gateway.cli") / "templates" / "project", PurePosixPath()))
    schema = json.dumps(build_editor_schema(), indent=2, ensure_ascii=False) + "\n"
    return {_RENAMED.get(path, path): text for path, text in {**written, _SCHEMA: schema}.items()}


def _texts(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _texts(entry, path / entry.name)
        else:
            yield path / entry.name, entry.read_text(encoding="utf-8")


def _fail_if_in_the_way(folder: Path, project: Files, *, force: bool) -> None:
    """End the command if a file is in the way. A file in place of a folder is refused even with `force`."""
    parents = {folder, *(folder / parent for path in project for parent in path.parents)}
    blocked = sorted(str(each) for each in parents if os.path.lexists(each) and not each.is_dir())
    if blocked:
        fail(f"not a folder: {', '.join(blocked)}", "choose another place")
    present = sorted(path for path in project if os.path.lexists(folder / path))
    folders = [str(path) for path in present if (folder / path).is_dir() and not (folder / path).is_symlink()]
    if folders:
        fail(f"in {folder}, folders are in the way of files: {', '.join(folders)}", "choose another place")
    if present and not force:
        found = ", ".join(map(str, present))
        fail(f"in {folder}, already there: {found}", "nothing was written; --force overwrites them")


def _write(folder: Path, project: Files) -> None:
    """Write the files to a staging folder, then move them one by one; undo the moves if one fails."""
    made: list[Path] = []
    try:
        _make_folders(folder, made)
        with tempfile.TemporaryDirectory(prefix=".gateway-init-", dir=folder) as staging:
            _stage(Path(staging), project)
            _move(Path(staging), folder, project)
    except BaseException:
        _remove(made)
        raise


def _make_folders(folder: Path, made: list[Path]) -> None:
    """Create the folder and its parents; append each created folder to `made`."""
    for each in reversed([folder, *folder.parents]):
        if not os.path.isdir(each):
            each.mkdir()
            made.append(each)


def _stage(staging: Path, project: Files) -> None:
    for path, text in project.items():
        staged = staging / "new" / path
        staged.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(text, encoding="utf-8")


def _move(staging: Path, folder: Path, project: Files) -> None:
    made: list[Path] = []
    moved: list[tuple[Path, Path | None]] = []
    try:
        for path in project:
            target, old = folder / path, staging / "old" / path
            _make_folders(target.parent, made)
            replaced = None
            if os.path.lexists(target):
                old.parent.mkdir(parents=True, exist_ok=True)
                replaced = old
                os.replace(target, old)
            moved.append((target, replaced))
            os.replace(staging / "new" / path, target)
    except BaseException:
        _undo_moves(moved)
        _remove(made)
        raise


def _undo_moves(moved: Iterable[tuple[Path, Path | None]]) -> None:
    for target, replaced in moved:
        if replaced is None:
            target.unlink(missing_ok=True)
        else:
            os.replace(replaced, target)


def _remove(made: Sequence[Path]) -> None:
    """Remove the created folders that are empty; one with other files stays."""
    for folder in reversed(made):
        with suppress(OSError):
            folder.rmdir()


def _print_written(folder: Path, project: Files) -> None:
    tree = Tree(Text(escape_invisible(str(folder)), style="bold"), guide_style="dim")
    branches = {PurePosixPath(): tree}
    for path in sorted(project, key=lambda each: (len(each.parts) > 1, each.parts)):
        for parent in reversed(path.parents):
            if parent not in branches:
                branches[parent] = branches[parent.parent].add(Text(parent.name))
        branches[path.parent].add(Text(path.name, style="cyan"))
    console = stdout()
    console.print(tree)
    console.print()
    where = "" if folder == Path() else f" {quote(str(folder))}"
    for command, words in (
        (f"gateway check{where}", "every problem, with its line"),
        (f"gateway test{where}", "the cases in policies/tests"),
        (f"gateway tools{f' --project{where}' if where else ''}", "the tools of the catalogue"),
        (f"{f'cd{where} && ' if where else ''}gateway serve", "serve it; records are stored in its folder data"),
    ):
        print_line(console, f"  {command}", (f"  # {words}", "dim"))
