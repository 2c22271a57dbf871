"""Reads a folder of policies: `model.conf` and every `*.csv`, each cell with its place in its file.

A row that cannot be read is a diagnostic and not part of the result. What the cells mean is `lint`'s question, not
this module's. Nothing is written and no policy engine is known here.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.authz.model import model_problems
from gateway.governance.diagnostics import Diagnostic, Position, did_you_mean, in_order

MAX_FILE: Final = 32 << 20
MAX_LINE: Final = 2_000
"""Six names of the greatest legal length fit."""

COLUMNS: Final = {
    "p": ("subject", "catalogue", "object", "actions", "tier", "effect"),
    "g": ("member", "role"),
    "g2": ("object", "group"),
}
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    position: Position


@dataclass(frozen=True, slots=True)
class Permission:
    """A `p` row: this subject may, or may not, do these things to these objects up to this tier."""

    subject: Cell
    catalogue: Cell
    object: Cell
    actions: Cell
    tier: Cell
    effect: Cell

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.subject, self.catalogue, self.object, self.actions, self.tier, self.effect)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(cell.text for cell in self.cells)

    @property
    def position(self) -> Position:
        """The row as a whole, from its first column."""
        return Position(self.subject.position.file, self.subject.position.line)


@dataclass(frozen=True, slots=True)
class Link:
    """A `g` row (a member has a role) or a `g2` row (an object belongs to a group)."""

    member: Cell
    group: Cell


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Everything the files say, each part in the order of files and lines."""

    permissions: tuple[Permission, ...] = ()
    members: tuple[Link, ...] = ()
    objects: tuple[Link, ...] = ()


def read_policies(folder: Path) -> tuple[PolicySet, list[Diagnostic]]:
    """The rows of a folder and what is wrong with its files. With an error among them the rows are not to be used."""
    found: list[Diagnostic] = []
    model = folder / "model.conf"
    if (lines := _lines(model, found)) is not None:
        found.extend(model_problems(iter(lines), file=model.as_posix()))
    rows: dict[str, list[list[Cell]]] = {section: [] for section in COLUMNS}
    for file in _tables(folder):
        for section, cells in _rows(file, found):
            rows[section].append(cells)
    policies = PolicySet(
        permissions=tuple(Permission(*cells) for cells in rows["p"]),
        members=tuple(Link(*cells) for cells in rows["g"]),
        objects=tuple(Link(*cells) for cells in rows["g2"]),
    )
    return policies, in_order(found)


def _tables(folder: Path) -> list[Path]:
    """Every CSV file, whatever the case of its ending: a forgotten file could hold the deny that matters."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".csv" and path.name[0] != ".")
    except OSError:  # reported when the file below cannot be read either
        files = []
    return files or [folder / "policy.csv"]


def _rows(file: Path, found: list[Diagnostic]) -> Iterator[tuple[str, list[Cell]]]:
    for number, line in _lines(file, found) or ():
        if not line.strip(" \t") or line.lstrip(" \t").startswith("#"):
            continue
        section, *cells = _cells(line, file=file.as_posix(), number=number)
        problem = _shape_problem(section, cells)
        if problem is None:
            yield section.text, cells
        else:
            found.append(problem)


def _cells(line: str, *, file: str, number: int) -> Iterator[Cell]:
    start = 0
    for raw in line.split(","):
        text = raw.strip(" \t")
        column = start + len(raw) - len(raw.lstrip(" \t")) + 1
        yield Cell(text, Position(file, number, column, max(1, len(text))))
        start += len(raw) + 1


def _shape_problem(section: Cell, cells: list[Cell]) -> Diagnostic | None:
    for cell in (section, *cells):
        if '"' in cell.text:
            return _error(
                "quoted-cell", "cells are not quoted", cell, help="no legal cell needs quotes: leave them out"
            )
    columns = COLUMNS.get(section.text)
    if columns is None:
        message = f"a row starts with {', '.join(COLUMNS)}, not {section.text[:40]!r}"
        return _error("unknown-section", message, section, help=did_you_mean(section.text, COLUMNS))
    if len(cells) != len(columns):
        message = f"a {section.text} row has {len(columns)} columns, this one has {len(cells)}"
        place = cells[len(columns)] if len(cells) > len(columns) else cells[-1] if cells else section
        return _error("row-arity", message, place, help=f"write {section.text}, {', '.join(columns)}")
    return None


def _lines(file: Path, found: list[Diagnostic]) -> list[tuple[int, str]] | None:
    """Numbered lines without those that cannot be read; `None` if the whole file cannot."""
    text = _text(file)
    if isinstance(text, Diagnostic):
        found.append(text)
        return None
    numbered = [(number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1)]
    return list(_legible(numbered, file=file.as_posix(), found=found))


def _text(file: Path) -> str | Diagnostic:
    place = Position(file.as_posix(), 1)
    try:
        if file.exists() and not file.is_file():  # a pipe would keep us waiting
            return Diagnostic("unreadable-file", f"{file.name} is not a file", place)
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE + 1)
    except FileNotFoundError:
        help = "a folder of policies has model.conf and at least policy.csv"
        return Diagnostic("file-missing", f"there is no file {file.name}", place, help=help)
    except OSError as error:
        return Diagnostic("unreadable-file", f"{file.name} cannot be read ({type(error).__name__})", place)
    if len(data) > MAX_FILE:
        return Diagnostic("file-too-large", f"the file is larger than {MAX_FILE >> 20} MiB", place)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = Position(file.as_posix(), data.count(b"\n", 0, error.start) + 1)
        return Diagnostic("bad-encoding", "the file is not UTF-8 text", place, help="save it as UTF-8")


def _legible(lines: Iterable[tuple[int, str]], *, file: str, found: list[Diagnostic]) -> Iterator[tuple[int, str]]:
    """Lines that look like what they are: an invisible character, even in a comment, could hide a row from a reader."""
    for number, line in lines:
        if len(line) > MAX_LINE:
            message = f"the line is longer than {MAX_LINE} characters"
            found.append(Diagnostic("line-too-long", message, Position(file, number)))
        elif (column := _first_invisible(line)) is not None:
            message = f"the line has an invisible character, U+{ord(line[column]):04X}"
            found.append(Diagnostic("control-character", message, Position(file, number, column + 1), help="remove it"))
        else:
            yield number, line


def _first_invisible(line: str) -> int | None:
    if line.isascii() and line.replace("\t", "").isprintable():
        return None
    marks = (at for at, char in enumerate(line) if char != "\t" and unicodedata.category(char) in _INVISIBLE)
    return next(marks, None)


def _error(code: str, message: str, cell: Cell, *, help: str | None = None) -> Diagnostic:
    return Diagnostic(code, message, cell.position, help=help)
