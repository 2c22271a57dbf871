"""The output of all commands: lines, tables, JSON, problems and times.

A terminal gets colours and folded tables; a pipe or a file gets the same words as plain lines. Text from users is never
interpreted as markup, and control characters in it are escaped before they reach a terminal.

A server must not block on its output: `nonblocking_output` discards what a full pipe does not accept in time.
"""

import asyncio
import io
import json
import os
import re
import select
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, TextIO, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gateway.errors import GatewayError
from gateway.model import escape_invisible
from gateway.registries import Diagnostic, sort_diagnostics

if TYPE_CHECKING:
    from gateway.config import SourceLines

T = TypeVar("T")

_UNSEEN: Final = re.compile(r"[^\n\r\t\x20-\x7e]")
_UNLIMITED: Final = 1_000_000
_GAP: Final = "  "
_NO_COLOURS: Final[Mapping[str, str]] = {}


def visible(words: str) -> str:
    """Return the text with each character escaped that a terminal would obey or not show."""
    return escape_invisible(words)


def stdout() -> Console:
    return _console(sys.stdout)


def stderr() -> Console:
    """Return a console on standard error, for everything but the result itself."""
    return _console(sys.stderr)


def print_line(console: Console, *parts: str | tuple[str, str]) -> None:
    """Print one line of texts, each with or without a style: `print_line(stdout(), ("✓", "green"), " fine")`."""
    shown = (visible(part) if isinstance(part, str) else (visible(part[0]), part[1]) for part in parts)
    console.print(Text.assemble(*shown), soft_wrap=True)


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    colours: Mapping[str, str] = _NO_COLOURS,
    folds: bool = True,
) -> None:
    """Print a table without its empty columns. `colours` maps the text of a whole cell to a style.

    A terminal that is too narrow gets one paragraph per row instead, unless `folds` is false.
    """
    shown = [[visible(cell) for cell in row] for row in rows]
    filled = [index for index in range(len(columns)) if index == 0 or any(row[index] for row in shown)]
    headers = [columns[index] for index in filled]
    cells = [[row[index] for index in filled] for row in shown]
    lines = _align_columns([headers, *cells])
    if console.is_terminal and folds and max(map(cell_len, lines)) > console.width:
        console.print(_make_paragraphs(headers, cells, colours, width=console.width))
    elif console.is_terminal:
        console.print(_make_grid(headers, cells, colours), soft_wrap=not folds)
    else:
        for line in lines:
            console.print(Text(line), soft_wrap=True)


def print_json(value: Any, *, indent: int | None = 2, default: Callable[[Any], Any] | None = None) -> None:
    """Print a value as JSON. Characters that a terminal would obey or not show are escaped; the value is the same."""
    print_document(json.dumps(value, indent=indent, ensure_ascii=False, default=default), is_json=True)


def print_document(text: str, *, is_json: bool = False) -> None:
    """Print a whole document for another program, and a line end. Control characters are escaped for a terminal."""
    shown = text.removesuffix("\n")
    if is_json:
        shown = escape_json(shown)
    elif sys.stdout.isatty():
        shown = "\n".join(map(visible, shown.split("\n")))
    typer.echo(shown)


def write_lines(lines: Iterable[bytes], *, are_json: bool) -> None:
    """Write lines of a file byte for byte; control characters are escaped for a terminal."""
    if not sys.stdout.isatty():
        for line in lines:
            sys.stdout.buffer.write(line)
        sys.stdout.flush()
        return
    for line in lines:
        text = line.decode("utf-8", "backslashreplace").removesuffix("\n")
        typer.echo(escape_json(text) if are_json else visible(text))


def escape_json(text: str) -> str:
    """Return JSON text with every unprintable character escaped. Outside strings, JSON has none but its layout."""
    return text if text.isascii() and "\x7f" not in text else _UNSEEN.sub(_escape, text)


def print_pairs(console: Console, pairs: Iterable[tuple[str, str | tuple[str, ...]]]) -> None:
    """Print names, each with its text folded beside it; several texts stand below each other."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, words in pairs:
        lines = (words,) if isinstance(words, str) else words
        grid.add_row(Text(name, style="dim"), Text("\n".join(map(visible, lines))))
    console.print(grid)


def fail(message: str, help: str | None = None, *, code: int = 2) -> NoReturn:
    """Print an error line and end the command."""
    print_line(stderr(), ("error: ", "bold red"), f"{message}; {help}" if help else message)
    raise typer.Exit(code)


def print_note(message: str) -> None:
    """Print a remark on standard error."""
    print_line(stderr(), ("note: ", "yellow"), message)


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _console(stream: IO[str]) -> Console:
    """Return a console that writes no escapes to a file or pipe, whatever FORCE_COLOR and similar variables say."""
    is_terminal = stream.isatty()
    return Console(
        file=stream,
        force_terminal=is_terminal,
        color_system=None if os.environ.get("NO_COLOR") or not is_terminal else "auto",
        width=None if is_terminal else _UNLIMITED,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=not is_terminal,
    )


def _make_grid(headers: Sequence[str], rows: Sequence[Sequence[str]], colours: Mapping[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, header in enumerate(headers):
        table.add_column(Text(header), no_wrap=True, style="" if index else "cyan")
    for row in rows:
        table.add_row(*(Text(cell, style=colours.get(cell, "")) for cell in row))
    return table


def _make_paragraphs(
    headers: Sequence[str], rows: Sequence[Sequence[str]], colours: Mapping[str, str], *, width: int
) -> Group:
    """Return each row as its first cell and, below it, every other cell behind the name of its column."""
    found: list[RenderableType] = []
    for first, *others in rows:
        pairs = [
            Text.assemble((f"{header} ", "dim"), (cell, colours.get(cell, "")))
            for header, cell in zip(headers[1:], others, strict=True)
            if cell
        ]
        lines = _pack_lines(pairs, width - len(_GAP))
        found += [Text(first, style="bold cyan"), *(Padding(line, (0, 0, 0, len(_GAP))) for line in lines)]
    return Group(*found)


def _pack_lines(pairs: Iterable[Text], width: int) -> list[Text]:
    """Return lines with as many pairs as fit; a pair is broken only if it is longer than a line."""
    lines: list[Text] = []
    for pair in pairs:
        if lines and lines[-1].cell_len + len(_GAP) + pair.cell_len <= width:
            lines[-1].append(_GAP).append_text(pair)
        else:
            lines.append(pair)
    return lines


def _align_columns(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    return [
        _GAP.join(cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_time(text: str | datetime) -> datetime:
    """Parse an age such as 15m, a day, or a moment; without a time zone it is UTC."""
    if isinstance(text, datetime):
        return text
    if age := re.fullmatch(r"(\d{1,6})([smhd])", text):
        return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter("write an age as 15m, 2h or 3d, or a moment as 2026-11-16T10:00:00Z") from None


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_GUTTER: Final = re.compile(r" *(?P<number>\d*) (?P<sign>[|=])")


def print_problems(console: Console, diagnostics: Iterable[Diagnostic], sources: "SourceLines") -> None:
    """Print one block per problem, sorted by position, each followed by an empty line."""
    from gateway.config import render_blocks  # small commands do not import gateway.config

    found = sort_diagnostics(diagnostics)
    for diagnostic, lines in zip(found, render_blocks(found, sources), strict=True):
        colour = "red" if diagnostic.is_error else "yellow"
        console.print(_style_headline(diagnostic, lines[0], colour), soft_wrap=True)
        for line in lines[1:]:
            console.print(_style_detail(line, colour), soft_wrap=True)
        console.print()


def _style_headline(diagnostic: Diagnostic, line: str, colour: str) -> Text:
    text = Text(line)
    where = len(escape_invisible(str(diagnostic.position)))
    what = where + len(": ") + len("" if diagnostic.is_error else "warning: ") + len(diagnostic.code)
    text.stylize("bold", 0, where)
    text.stylize(f"bold {colour}", where + len(": "), what)
    return text


def _style_detail(line: str, colour: str) -> Text:
    """Return a styled line: of source, of the carets under it, or of a note."""
    text = Text(line)
    gutter = _GUTTER.match(line)
    if gutter is not None:
        text.stylize("blue", 0, gutter.end())
        if gutter["sign"] == "=":
            text.stylize("cyan", gutter.end())
        elif not gutter["number"]:
            text.stylize(f"bold {colour}", gutter.end())
    return text


_PATIENCE: Final = 100
"""Milliseconds to wait for a reader that has kept up so far."""

_PIECE: Final = select.PIPE_BUF
"""Bytes that a pipe with room accepts without blocking."""


@contextmanager
def nonblocking_output() -> Iterator[None]:
    """Discard printed and logged output that cannot be written at once, for as long as the context lasts."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_wrap_stream, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _wrap_stream(stream: TextIO) -> TextIO:
    try:
        stream.flush()
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):  # there is no stream, or it is closed or no file: it cannot block
        return stream
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return io.TextIOWrapper(_NonblockingWriter(descriptor), encoding, "backslashreplace", write_through=True)  # type: ignore[type-var]  # its type asks for a buffered stream; it only calls `write`


class _NonblockingWriter(io.RawIOBase):
    """Writer to a descriptor that it does not close."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._patience = _PATIENCE

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        left = memoryview(data)
        while left and self._has_room():
            try:
                left = left[os.write(self._descriptor, left[:_PIECE]) :]
            except OSError:  # the reader is gone
                break
        return len(data)

    def _has_room(self) -> bool:
        has_room = bool(self._room.poll(self._patience))
        self._patience = _PATIENCE if has_room else 0
        return has_room


def run_or_fail(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the coroutine; end the command with code 1 if it raises a `GatewayError`."""
    try:
        return asyncio.run(work)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
