"""Reader for a folder of policies: `model.conf` and every `*.csv`, each cell with its position in its file.

A row that cannot be read becomes a diagnostic and is not part of the result. `lint` checks what the cells mean; this
module writes nothing and does not use the policy engine.

The policy model is fixed in this module. A folder's `model.conf` is there for readers and for other Casbin tools; it
must mean the same. Decisions use the text below, so editing a file cannot weaken the effect: a file that differs in
meaning is refused rather than ignored.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.registries import Diagnostic, Position, sort_diagnostics, suggest_name

MODEL_TEXT: Final = """
[request_definition]
r = who, cat, obj, act, tier
[policy_definition]
p = sub, cat, obj, act, tier, eft
[role_definition]
g = _, _
g2 = _, _
[policy_effect]
e = some(where (p.eft == allow)) && !some(where (p.eft == deny))
[matchers]
m = holds(r.who, p.sub) && names(r.cat, p.cat) && covers(r.obj, p.obj) && does(r.act, p.act) && within(r.tier, p.tier)
"""

_HELP: Final = "the model is part of the gateway; restore the shipped model.conf and express the rule as rows"
_SPACE: Final = re.compile(r"\s+")


def check_model(lines: Iterator[tuple[int, str]], *, file: str) -> list[Diagnostic]:
    """Return what differs in meaning from the shipped model; spaces and comments may differ."""
    left = {name: value for _, name, value in _definitions(enumerate(MODEL_TEXT.splitlines(), 1))}
    found = []
    for line, name, value in _definitions(lines):
        if left.get(name) != value:
            found.append(_problem(f"{name!r} differs from the shipped model", file=file, line=line))
        left.pop(name, None)
    return found + [_problem(f"{name!r} is missing", file=file, line=1) for name in left]


def _definitions(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """Yield `(line, section.key, value without spaces)`; a line without a definition yields its own text as name."""
    section = ""
    for number, line in lines:
        text = line.partition("#")[0].strip()
        if not text or text.startswith(";"):
            continue
        if text.startswith("[") and text.endswith("]"):
            section = text[1:-1].strip()
            continue
        key, _, value = text.partition("=")
        yield number, f"{section}.{key.strip()}"[:80], _SPACE.sub("", value)


def _problem(message: str, *, file: str, line: int) -> Diagnostic:
    return Diagnostic("policy-model", message, Position(file, line), help=_HELP)


MAX_FILE: Final = 32 << 20
MAX_LINE: Final = 2_000
"""Enough for six names of the greatest legal length."""

COLUMNS: Final = {
    "p": ("subject", "catalogue", "object", "actions", "tier", "effect"),
    "g": ("member", "role"),
    "g2": ("object", "group"),
}
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class PolicyCell:
    text: str
    position: Position


@dataclass(frozen=True, slots=True)
class PermissionRow:
    """A `p` row: this subject may, or may not, perform these actions on these objects up to this tier."""

    subject: PolicyCell
    catalogue: PolicyCell
    object: PolicyCell
    actions: PolicyCell
    tier: PolicyCell
    effect: PolicyCell

    @property
    def cells(self) -> tuple[PolicyCell, ...]:
        return (self.subject, self.catalogue, self.object, self.actions, self.tier, self.effect)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(cell.text for cell in self.cells)

    @property
    def position(self) -> Position:
        """The whole row, from its first column."""
        return Position(self.subject.position.file, self.subject.position.line)


@dataclass(frozen=True, slots=True)
class RoleLink:
    """A `g` row (a member has a role) or a `g2` row (an object belongs to a group)."""

    member: PolicyCell
    group: PolicyCell


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All rows of the files, each part in the order of files and lines."""

    permissions: tuple[PermissionRow, ...] = ()
    members: tuple[RoleLink, ...] = ()
    objects: tuple[RoleLink, ...] = ()


def read_policies(folder: Path) -> tuple[PolicySet, list[Diagnostic]]:
    """Return the rows of a folder and the problems of its files. If one is an error, do not use the rows."""
    found: list[Diagnostic] = []
    model = folder / "model.conf"
    if (lines := _lines(model, found)) is not None:
        found.extend(check_model(iter(lines), file=model.as_posix()))
    rows: dict[str, list[list[PolicyCell]]] = {section: [] for section in COLUMNS}
    for file in _tables(folder):
        for section, cells in _rows(file, found):
            rows[section].append(cells)
    policies = PolicySet(
        permissions=tuple(PermissionRow(*cells) for cells in rows["p"]),
        members=tuple(RoleLink(*cells) for cells in rows["g"]),
        objects=tuple(RoleLink(*cells) for cells in rows["g2"]),
    )
    return policies, sort_diagnostics(found)


def _tables(folder: Path) -> list[Path]:
    """Return every CSV file, whatever the case of its suffix: a forgotten file could hold the deny that matters."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".csv" and path.name[0] != ".")
    except OSError:  # reported when policy.csv cannot be read either
        files = []
    return files or [folder / "policy.csv"]


def _rows(file: Path, found: list[Diagnostic]) -> Iterator[tuple[str, list[PolicyCell]]]:
    for number, line in _lines(file, found) or ():
        if not line.strip(" \t") or line.lstrip(" \t").startswith("#"):
            continue
        section, *cells = _cells(line, file=file.as_posix(), number=number)
        problem = _shape_problem(section, cells)
        if problem is None:
            yield section.text, cells
        else:
            found.append(problem)


def _cells(line: str, *, file: str, number: int) -> Iterator[PolicyCell]:
    start = 0
    for raw in line.split(","):
        text = raw.strip(" \t")
        column = start + len(raw) - len(raw.lstrip(" \t")) + 1
        yield PolicyCell(text, Position(file, number, column, max(1, len(text))))
        start += len(raw) + 1


def _shape_problem(section: PolicyCell, cells: list[PolicyCell]) -> Diagnostic | None:
    for cell in (section, *cells):
        if '"' in cell.text:
            return _error(
                "quoted-cell", "cells must not be quoted", cell, help="no legal cell needs quotes: leave them out"
            )
    columns = COLUMNS.get(section.text)
    if columns is None:
        message = f"a row starts with {', '.join(COLUMNS)}, not {section.text[:40]!r}"
        return _error("unknown-section", message, section, help=suggest_name(section.text, COLUMNS))
    if len(cells) != len(columns):
        message = f"a {section.text} row has {len(columns)} columns, this one has {len(cells)}"
        place = cells[len(columns)] if len(cells) > len(columns) else cells[-1] if cells else section
        return _error("row-arity", message, place, help=f"write {section.text}, {', '.join(columns)}")
    return None


def _lines(file: Path, found: list[Diagnostic]) -> list[tuple[int, str]] | None:
    """Return numbered lines without illegible ones; `None` if the whole file cannot be read."""
    text = _text(file)
    if isinstance(text, Diagnostic):
        found.append(text)
        return None
    numbered = [(number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1)]
    return list(_legible(numbered, file=file.as_posix(), found=found))


def _text(file: Path) -> str | Diagnostic:
    place = Position(file.as_posix(), 1)
    try:
        if file.exists() and not file.is_file():  # reading a pipe would block
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
    """Yield legible lines: an invisible character, even in a comment, could hide a row from a reader."""
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


def _error(code: str, message: str, cell: PolicyCell, *, help: str | None = None) -> Diagnostic:
    return Diagnostic(code, message, cell.position, help=help)
