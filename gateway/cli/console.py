"""What people read: colours and folded tables in a terminal, the same words as plain lines everywhere else.

Text that users wrote is never taken for markup, and nothing in it reaches the terminal as a command. Every command
prints through this module, so that holds for all of them: for text, for JSON, and for files that go to a terminal.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, Final, NoReturn

import typer
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_UNSEEN: Final = re.compile(r"[^\n\r\t\x20-\x7e]")
_UNLIMITED: Final = 1_000_000
_GAP: Final = "  "
_NO_COLOURS: Final[Mapping[str, str]] = {}


def visible(words: str) -> str:
    """The text with an escape for each character that a terminal would obey or not show."""
    if words.isprintable():
        return words
    from gateway.config.report_text import visible as escaped  # commands that print plain words do without it

    return escaped(words)


def out() -> Console:
    """Standard output."""
    return _console(sys.stdout)


def err() -> Console:
    """Standard error: what is not the answer itself."""
    return _console(sys.stderr)


def print_line(console: Console, *parts: str | tuple[str, str]) -> None:
    """One line of texts, each with or without a style: `print_line(out(), ("✓", "green"), " fine")`."""
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
    """A table; columns in which every cell is empty are left out. `colours` are those of words that fill a cell.

    A terminal that is too narrow gets one paragraph per row instead, unless `folds` is false.
    """
    shown = [[visible(cell) for cell in row] for row in rows]
    kept = [index for index in range(len(columns)) if index == 0 or any(row[index] for row in shown)]
    headers = [columns[index] for index in kept]
    cells = [[row[index] for index in kept] for row in shown]
    lines = _aligned([headers, *cells])
    if console.is_terminal and folds and max(map(cell_len, lines)) > console.width:
        console.print(_paragraphs(headers, cells, colours, width=console.width))
    elif console.is_terminal:
        console.print(_grid(headers, cells, colours), soft_wrap=not folds)
    else:
        for line in lines:
            console.print(Text(line), soft_wrap=True)


def print_json(value: Any, *, indent: int | None = 2, default: Callable[[Any], Any] | None = None) -> None:
    """A value for programs. What a terminal would obey or not show is escaped, which is the same JSON."""
    print_document(json.dumps(value, indent=indent, ensure_ascii=False, default=default), is_json=True)


def print_document(text: str, *, is_json: bool = False) -> None:
    """A whole document for another program, with a line end after it. In a terminal it is neutralised."""
    shown = text.removesuffix("\n")
    if is_json:
        shown = escaped_json(shown)
    elif sys.stdout.isatty():
        shown = "\n".join(map(visible, shown.split("\n")))
    typer.echo(shown)


def write_lines(lines: Iterable[bytes], *, are_json: bool) -> None:
    """Lines of a file, byte for byte; in a terminal, which no program reads, they are neutralised."""
    if not sys.stdout.isatty():
        for line in lines:
            sys.stdout.buffer.write(line)
        sys.stdout.flush()
        return
    for line in lines:
        text = line.decode("utf-8", "backslashreplace").removesuffix("\n")
        typer.echo(escaped_json(text) if are_json else visible(text))


def escaped_json(text: str) -> str:
    """JSON text with an escape for every character that is not printable. Outside of strings JSON has none but its
    layout.
    """
    return text if text.isascii() and "\x7f" not in text else _UNSEEN.sub(_escape, text)


def print_pairs(console: Console, pairs: Iterable[tuple[str, str | tuple[str, ...]]]) -> None:
    """Names with what there is to say of each, folded beside the name; several things below each other."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, words in pairs:
        lines = (words,) if isinstance(words, str) else words
        grid.add_row(Text(name, style="dim"), Text("\n".join(map(visible, lines))))
    console.print(grid)


def fail(message: str, help: str | None = None, *, code: int = 2) -> NoReturn:
    """End the command with one line about why."""
    print_line(err(), ("error: ", "bold red"), f"{message}; {help}" if help else message)
    raise typer.Exit(code)


def note(message: str) -> None:
    """Something worth knowing that is not the answer."""
    print_line(err(), ("note: ", "yellow"), message)


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _console(stream: IO[str]) -> Console:
    """Neither FORCE_COLOR nor any other variable makes escapes appear in a file or a pipe."""
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


def _grid(headers: Sequence[str], rows: Sequence[Sequence[str]], colours: Mapping[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, header in enumerate(headers):
        table.add_column(Text(header), no_wrap=True, style="" if index else "cyan")
    for row in rows:
        table.add_row(*(Text(cell, style=colours.get(cell, "")) for cell in row))
    return table


def _paragraphs(
    headers: Sequence[str], rows: Sequence[Sequence[str]], colours: Mapping[str, str], *, width: int
) -> Group:
    """Each row's first cell, and below it every other cell behind the name of its column."""
    found: list[RenderableType] = []
    for first, *others in rows:
        pairs = [
            Text.assemble((f"{header} ", "dim"), (cell, colours.get(cell, "")))
            for header, cell in zip(headers[1:], others, strict=True)
            if cell
        ]
        lines = _packed(pairs, width - len(_GAP))
        found += [Text(first, style="bold cyan"), *(Padding(line, (0, 0, 0, len(_GAP))) for line in lines)]
    return Group(*found)


def _packed(pairs: Iterable[Text], width: int) -> list[Text]:
    """As many on a line as fit, so that a name and its value part only where one of them is longer than a line."""
    lines: list[Text] = []
    for pair in pairs:
        if lines and lines[-1].cell_len + len(_GAP) + pair.cell_len <= width:
            lines[-1].append(_GAP).append_text(pair)
        else:
            lines.append(pair)
    return lines


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    return [
        _GAP.join(cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
