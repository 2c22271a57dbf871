"""Read the documents of a folder: every YAML file below it, in an order that does not depend on the file system.

Hidden files and folders are skipped. Links are followed as mounted ConfigMaps require it, where each name links into a
hidden folder: never out of the folder, and never to a file that is read anyway.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from gateway.config.yaml.document import MAX_BYTES, YamlDocument, decode_file
from gateway.config.yaml.parser import parse_bytes
from gateway.registries import Diagnostic, Position, sort_diagnostics

_SUFFIXES: Final = (".yaml", ".yml")
_OPENAPI_SUFFIXES: Final = tuple(f".openapi{suffix}" for suffix in _SUFFIXES)
"""OpenAPI documents may be in the same folder; they are not configuration."""


def read_documents(
    root: Path, *, exclude: Iterable[str] = (), prefix: str = ""
) -> tuple[list[YamlDocument], list[Diagnostic]]:
    """Return the documents of all files, sorted by path, and the problems.

    `exclude` has patterns of paths relative to the folder (`drafts/*`). Positions name files by this path, with
    `prefix` in front (`configs`).
    """
    walk = _Walk(root, tuple(exclude), prefix)
    documents: list[YamlDocument] = []
    problems: list[Diagnostic] = []
    for file in sorted(walk.files(), key=walk.display_name):
        read, found = read_file(file, walk.display_name(file))
        documents += read
        problems += found
    problems += walk.problems
    if not documents and not problems:
        problems.append(_no_documents(walk.display_root))
    return documents, sort_diagnostics(problems)


def read_file(path: Path, file: str, *, limit: int = MAX_BYTES) -> tuple[list[YamlDocument], list[Diagnostic]]:
    """Return the documents of one file, named `file` in positions. At most one byte more than `limit` is read."""
    try:
        data = _read_start(path, limit)
    except OSError as error:
        return [], [_unreadable("unreadable-file", file, error)]
    if data is None:
        return [], [Diagnostic("unreadable-file", "not a regular file", Position(file, 1))]
    return parse_bytes(data, file, limit=limit)


def list_files(root: Path, *, prefix: str = "") -> Callable[[str], str | None]:
    """Return a function that reads the text of a file by its name in positions, or returns `None`."""

    def text_of(file: str) -> str | None:
        try:
            data = _read_start(root / file.removeprefix(f"{prefix}/" if prefix else ""))
        except (OSError, ValueError):
            return None
        return None if data is None else decode_file(data, file)[0]

    return text_of


class _Walk:
    """One pass over a folder. Each real folder is entered once, so that links cannot cause a cycle."""

    def __init__(self, root: Path, exclude: tuple[str, ...], prefix: str) -> None:
        self.problems: list[Diagnostic] = []
        self._root = root
        self._real_root = os.path.realpath(root)
        self._exclude = exclude
        self._prefix = prefix
        self._entered: set[str] = set()

    @property
    def display_root(self) -> str:
        return self._prefix or _printable(self._root)

    def display_name(self, path: Path) -> str:
        """Return the path for messages and for sorting."""
        return _printable(Path(self._prefix, path.relative_to(self._root)))

    def files(self) -> Iterator[Path]:
        problem = _root_problem(self._root, self.display_root)
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
            shown = self.display_root if folder == self._root else self.display_name(folder)
            self.problems.append(_unreadable("unreadable-folder", shown, error))
            return []

    def _is_excluded(self, path: Path) -> bool:
        relative = path.relative_to(self._root).as_posix()
        return any(fnmatchcase(relative, pattern) for pattern in self._exclude)

    def _may_follow(self, link: Path) -> bool:
        """Whether the target of a link is read only through it. Reports a link that leaves the folder."""
        real = Path(os.path.realpath(link))
        if not real.is_relative_to(self._real_root):
            if os.path.isdir(real) or _is_yaml(link.name):
                position = Position(self.display_name(link), 1)
                help = "copy its target into the folder"
                self.problems.append(Diagnostic("link-outside", "the link leaves the folder", position, help=help))
            return False
        inside = real.relative_to(self._real_root)
        is_hidden = any(part.startswith(".") for part in inside.parts)
        return is_hidden or not (os.path.isdir(real) or (os.path.isfile(real) and _is_yaml(real.name)))


def _read_start(path: Path, limit: int = MAX_BYTES) -> bytes | None:
    """Return at most `limit` + 1 bytes; `None` for a pipe or device, which might never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        return file.read(limit + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def _is_yaml(name: str) -> bool:
    return name.lower().endswith(_SUFFIXES) and not name.lower().endswith(_OPENAPI_SUFFIXES)


def _printable(path: Path) -> str:
    """Return the path with `/` and with escapes for bytes that are not UTF-8."""
    return os.fsencode(path.as_posix()).decode(errors="backslashreplace")


def _root_problem(root: Path, shown: str) -> Diagnostic | None:
    try:
        is_folder = stat.S_ISDIR(os.stat(root).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return Diagnostic("missing-folder", "the folder does not exist", Position(shown, 1))
    except OSError as error:
        return _unreadable("unreadable-folder", shown, error)
    if is_folder:
        return None
    help = "use the folder that contains the file"
    return Diagnostic("not-a-folder", "the path is a file, not a folder", Position(shown, 1), help=help)


def _unreadable(code: str, file: str, error: OSError) -> Diagnostic:
    reason = (error.strerror or "it cannot be read").lower()
    what = "file" if code == "unreadable-file" else "folder"
    return Diagnostic(code, f"the {what} cannot be read: {reason}", Position(file, 1))


def _no_documents(folder: str) -> Diagnostic:
    help = f"documents are read from files that end in {' or '.join(_SUFFIXES)}; hidden files are skipped"
    return Diagnostic("no-documents", "the folder has no documents", Position(folder, 1), "warning", help)
