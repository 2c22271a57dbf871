"""Problems as people are shown them: the report's own lines, coloured by what they are.

What the lines say is decided by the report alone, so a terminal and a pipe show the same words.
"""

import re
from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.text import Text

from gateway.config.report import Sources
from gateway.config.report_text import blocks, visible
from gateway.governance.diagnostics import Diagnostic, in_order

_GUTTER: Final = re.compile(r" *(?P<number>\d*) (?P<sign>[|=])")


def print_problems(console: Console, diagnostics: Iterable[Diagnostic], sources: Sources) -> None:
    """One block per problem, by position, each followed by an empty line."""
    found = in_order(diagnostics)
    for diagnostic, lines in zip(found, blocks(found, sources), strict=True):
        colour = "red" if diagnostic.is_error else "yellow"
        console.print(_headline(diagnostic, lines[0], colour), soft_wrap=True)
        for line in lines[1:]:
            console.print(_below(line, colour), soft_wrap=True)
        console.print()


def _headline(diagnostic: Diagnostic, line: str, colour: str) -> Text:
    text = Text(line)
    where = len(visible(str(diagnostic.position)))
    what = where + len(": ") + len("" if diagnostic.is_error else "warning: ") + len(diagnostic.code)
    text.stylize("bold", 0, where)
    text.stylize(f"bold {colour}", where + len(": "), what)
    return text


def _below(line: str, colour: str) -> Text:
    """A line of source, the carets under it, or a note: whatever stands behind the gutter."""
    text = Text(line)
    gutter = _GUTTER.match(line)
    if gutter is not None:
        text.stylize("blue", 0, gutter.end())
        if gutter["sign"] == "=":
            text.stylize("cyan", gutter.end())
        elif not gutter["number"]:
            text.stylize(f"bold {colour}", gutter.end())
    return text
