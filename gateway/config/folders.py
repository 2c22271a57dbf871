"""The documents of a folder: every YAML file below it, in one order whatever the file system's.

Hidden files and folders are passed over. Links are followed as mounted ConfigMaps need it, where each name links into
a hidden folder: never out of the folder, and never to what is read in its own place anyway.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from gateway.config.nodes import Document
from gateway.config.source import read_bytes
from gateway.config.text import MAX_BYTES, decode
from gateway.governance.diagnostics import Diagnostic, Position, in_order

_SUFFIXES: Final = (".yaml", ".yml")
_OF_OTHERS: Final = tuple(f".openapi{suffix}" for suffix in _SUFFIXES)
"""OpenAPI documents may stand beside the Upstream that names them."""


def read_folder(
    root: Path, *, exclude: Iterable[str] = (), prefix: str = ""
) -> tuple[list[Document], list[Diagnostic]]:
    """The documents of all files, by path, and every problem found.

    `exclude` are patterns over paths relative to the folder (`drafts/*`). Positions name files by that path, with
    `prefix` in front of it (`configs`).
    """
    walk = _Walk(root, tuple(exclude), prefix)
    documents: list[Document] = []
    problems: list[Diagnostic] = []
    for file in sorted(walk.files(), key=walk.shown):
        read, found = read_file(file, walk.shown(file))
        documents += read
        problems += found
    problems += walk.problems
    if not documents and not problems:
        problems.append(_no_documents(walk.shown_root))
    return documents, in_order(problems)


def read_file(path: Path, file: str, *, limit: int = MAX_BYTES) -> tuple[list[Document], list[Diagnostic]]:
    """The documents of one file, which positions call `file`; no more of it is read than a file may have."""
    try:
        data = _read_start(path, limit)
    except OSError as error:
        return [], [_unreadable("unreadable-file", file, error)]
    if data is None:
        return [], [Diagnostic("unreadable-file", "this is not a regular file", Position(file, 1))]
    return read_bytes(data, file, limit=limit)


def sources_in(root: Path, *, prefix: str = "") -> Callable[[str], str | None]:
    """What a report needs to show lines: the text behind the `file` of a position, or `None`."""

    def text_of(file: str) -> str | None:
        try:
            data = _read_start(root / file.removeprefix(f"{prefix}/" if prefix else ""))
        except (OSError, ValueError):
            return None
        return None if data is None else decode(data, file)[0]

    return text_of


class _Walk:
    """One pass over a folder. Each real folder is entered once, so that links cannot lead in circles."""

    def __init__(self, root: Path, exclude: tuple[str, ...], prefix: str) -> None:
        self.problems: list[Diagnostic] = []
        self._root = root
        self._real_root = os.path.realpath(root)
        self._exclude = exclude
        self._prefix = prefix
        self._entered: set[str] = set()

    @property
    def shown_root(self) -> str:
        return self._prefix or _printable(self._root)

    def shown(self, path: Path) -> str:
        """The path for people and for sorting."""
        return _printable(Path(self._prefix, path.relative_to(self._root)))

    def files(self) -> Iterator[Path]:
        problem = _root_problem(self._root, self.shown_root)
        if problem is not None:
            self.problems.append(problem)
            return
        waiting = [self._root]
        while waiting:
            for entry in self._entries(waiting.pop()):
                path = Path(entry.path)
                if self._is_excluded(path) or (entry.is_symlink() and not self._may_follow(path)):
                    continue
                if os.path.isdir(path):
                    waiting.append(path)
                elif _is_yaml(entry.name):
                    yield path

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        real = os.path.realpath(folder)
        if real in self._entered:
            return []
        self._entered.add(real)
        try:
            with os.scandir(folder) as entries:
                return sorted((each for each in entries if not each.name.startswith(".")), key=lambda each: each.name)
        except OSError as error:
            shown = self.shown_root if folder == self._root else self.shown(folder)
            self.problems.append(_unreadable("unreadable-folder", shown, error))
            return []

    def _is_excluded(self, path: Path) -> bool:
        relative = path.relative_to(self._root).as_posix()
        return any(fnmatchcase(relative, pattern) for pattern in self._exclude)

    def _may_follow(self, link: Path) -> bool:
        """Whether a link leads to something that is read through it alone; says so if it leads out."""
        real = Path(os.path.realpath(link))
        if not real.is_relative_to(self._real_root):
            if os.path.isdir(real) or _is_yaml(link.name):
                position = Position(self.shown(link), 1)
                help = "copy what it points at into the folder"
                self.problems.append(Diagnostic("link-outside", "the link leaves the folder", position, help=help))
            return False
        inside = real.relative_to(self._real_root)
        is_hidden = any(part.startswith(".") for part in inside.parts)
        return is_hidden or not (os.path.isdir(real) or (os.path.isfile(real) and _is_yaml(real.name)))


def _read_start(path: Path, limit: int = MAX_BYTES) -> bytes | None:
    """The content up to one byte past the limit; `None` for what is not a regular file and might never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        return file.read(limit + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def _is_yaml(name: str) -> bool:
    return name.lower().endswith(_SUFFIXES) and not name.lower().endswith(_OF_OTHERS)


def _printable(path: Path) -> str:
    """With `/`; bytes of a name that are not UTF-8 are written as escapes."""
    return os.fsencode(path.as_posix()).decode(errors="backslashreplace")


def _root_problem(root: Path, shown: str) -> Diagnostic | None:
    try:
        is_folder = stat.S_ISDIR(os.stat(root).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return Diagnostic("missing-folder", "there is no such folder", Position(shown, 1))
    except OSError as error:
        return _unreadable("unreadable-folder", shown, error)
    if is_folder:
        return None
    help = "give the folder that holds the file"
    return Diagnostic("not-a-folder", "this is a file, not a folder", Position(shown, 1), help=help)


def _unreadable(code: str, file: str, error: OSError) -> Diagnostic:
    reason = (error.strerror or "it cannot be read").lower()
    what = "file" if code == "unreadable-file" else "folder"
    return Diagnostic(code, f"the {what} cannot be read: {reason}", Position(file, 1))


def _no_documents(folder: str) -> Diagnostic:
    help = f"documents are read from files that end in {' or '.join(_SUFFIXES)}; hidden ones are passed over"
    return Diagnostic("no-documents", "there are no documents in this folder", Position(folder, 1), "warning", help)
