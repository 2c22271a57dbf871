"""Reader for a folder of policies: `model.conf` and every `*.csv`, each cell with its position in its file.

A row that cannot be read becomes a diagnostic and is not part of the result. `lint` checks what the cells mean; this
module writes nothing and does not use the policy engine.

The policy model is fixed in this module. A folder's `model.conf` is there for readers and for other Casbin tools; it
must mean the same. Decisions use the text below, so editing a file cannot weaken the effect: a file that differs in
meaning is refused rather than ignored.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from gateway.policy.casbin.row_end import (
    EndComment,
    RowEnd,
    check_end_comment,
    check_near_miss,
    detached_comment,
    parse_end_comment,
)
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
_FIRST_WORD: Final = re.compile(r"[ \t]*#[ \t]*([^ \t]+)")
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
    end: RowEnd | None = field(default=None, kw_only=True)

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
    end: RowEnd | None = field(default=None, kw_only=True)
    """Only a role membership can have one."""

    @property
    def position(self) -> Position:
        """The whole row, from its first column."""
        return Position(self.member.position.file, self.member.position.line)


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All rows of the files, each part in the order of files and lines."""

    permissions: tuple[PermissionRow, ...] = ()
    members: tuple[RoleLink, ...] = ()
    objects: tuple[RoleLink, ...] = ()

    @property
    def ending(self) -> tuple[PermissionRow | RoleLink, ...]:
        """The rows with an end, in force or not."""
        rows: tuple[PermissionRow | RoleLink, ...] = (*self.permissions, *self.members)
        return tuple(row for row in rows if row.end is not None)

    def in_force(self, at: datetime) -> "PolicySet":
        """Return the rows in force at a moment, without their ends."""
        permissions = (replace(row, end=None) for row in self.permissions if row.end is None or not row.end.is_over(at))
        members = (replace(link, end=None) for link in self.members if link.end is None or not link.end.is_over(at))
        return PolicySet(tuple(permissions), tuple(members), self.objects)


def read_policies(folder: Path) -> tuple[PolicySet, list[Diagnostic]]:
    """Return the rows of a folder and the problems of its files. If one is an error, do not use the rows."""
    found: list[Diagnostic] = []
    model = folder / "model.conf"
    if (lines := _lines(model, found)) is not None:
        found.extend(check_model(iter(lines), file=model.as_posix()))
    rows: dict[str, list[tuple[Sequence[PolicyCell], RowEnd | None]]] = {section: [] for section in COLUMNS}
    for file in _tables(folder):
        for section, cells, end in _rows(file, found):
            rows[section].append((cells, end))
    policies = PolicySet(
        permissions=tuple(_permission_row(cells, end) for cells, end in rows["p"]),
        members=tuple(RoleLink(cells[0], cells[1], end=end) for cells, end in rows["g"]),
        objects=tuple(RoleLink(cells[0], cells[1]) for cells, _ in rows["g2"]),
    )
    return policies, sort_diagnostics(found)


def _permission_row(cells: Sequence[PolicyCell], end: RowEnd | None) -> PermissionRow:
    subject, catalogue, object, actions, tier, effect = cells
    return PermissionRow(subject, catalogue, object, actions, tier, effect, end=end)


def _tables(folder: Path) -> list[Path]:
    """Return every CSV file, whatever the case of its suffix: a forgotten file could hold the deny that matters."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".csv" and path.name[0] != ".")
    except OSError:  # reported when policy.csv cannot be read either
        files = []
    return files or [folder / "policy.csv"]


def _rows(file: Path, found: list[Diagnostic]) -> Iterator[tuple[str, list[PolicyCell], RowEnd | None]]:
    above = _LineAbove()
    for number, line in _lines(file, found) or ():
        if not line.strip(" \t") or line.lstrip(" \t").startswith("#"):
            word = _FIRST_WORD.match(line)
            span = (1, 1) if word is None else (word.start(1) + 1, len(word[1]))
            found.extend(above.replace(line, Position(file.as_posix(), number, *span)))
            continue
        section, *cells = _cells(line, file=file.as_posix(), number=number)
        problem = _shape_problem(section, cells)
        end, problems = above.take([section.text, *(cell.text for cell in cells)], number)
        found.extend(problems)
        if problem is None:
            yield section.text, cells, end
        else:
            found.append(problem)
    found.extend(above.replace("", Position(file.as_posix(), 0)))


class _LineAbove:
    """The comment above a row: only the line directly above it can end it."""

    def __init__(self) -> None:
        self._line: tuple[str, Position] | None = None
        self._comment: EndComment | None = None

    def replace(self, line: str, position: Position) -> Iterator[Diagnostic]:
        """Read a comment or blank line. An end comment before it has no row."""
        if self._comment is not None:
            yield detached_comment(self._comment)
        parsed = parse_end_comment(line, position)
        self._line, self._comment = (line, position), parsed if isinstance(parsed, EndComment) else None
        if isinstance(parsed, Diagnostic):
            yield parsed

    def take(self, cells: list[str], number: int) -> tuple[RowEnd | None, list[Diagnostic]]:
        """Return the end of the row below, and the problems of the comment."""
        line, comment = self._line, self._comment
        self._line, self._comment = None, None
        if line is None:
            return None, []
        if comment is None:
            problem = check_near_miss(*line, cells)
        elif line[1].line != number - 1:  # a line between them could not be read
            problem = detached_comment(comment)
        else:
            problem = check_end_comment(comment, cells)
        return (None if comment is None else comment.end), [problem] if problem else []


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
