"""Diagnostics for people and for other programs, in one order and with the same bytes for the same problems.

Source lines come from the files themselves, never from loaded data: what the environment put into a value is
not printed.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from gateway.config.report_formats import github, json_list, junit, sarif
from gateway.config.report_text import Sources, summary, text
from gateway.governance.diagnostics import Diagnostic, in_order

__all__ = ["Output", "Sources", "render", "summary"]

Output = Literal["text", "json", "github", "sarif", "junit"]


def render(diagnostics: Iterable[Diagnostic], *, sources: Sources, output: Output = "text") -> str:
    """All problems, each once, by position. `sources` gives a file's text where it is known."""
    found = in_order(diagnostics)
    if output == "text":
        return text(found, sources)
    formats: dict[str, Callable[[list[Diagnostic]], str]] = {
        "json": json_list,
        "github": github,
        "sarif": sarif,
        "junit": junit,
    }
    return formats[output](found)
