"""The page: one self-contained file of HTML without scripts, external references, inline styles or handlers.

Every value of the templates passes through `show_text`: it escapes markup, and shows what a screen would not draw.
A content policy in the page forbids everything but the one style sheet, by its digest.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gateway.model import split_unseen
from gateway.registries import Position
from gateway.review.report.report_data import ReportData
from gateway.review.report.report_input import NoData
from gateway.review.report.section_titles import TITLES

_TEMPLATES: Final = Path(__file__).parents[1] / "templates"
_SHEETS: Final = ("tokens.css", "report/report.css")
_ICONS: Final = {
    "writes": "pen",
    "destructive": "flame",
    "egress": "out",
    "moves-money": "coin",
    "private-data": "lock",
    "untrusted-output": "quote",
}
_LONGEST_EXCERPT: Final = 2_000


@dataclass(frozen=True, slots=True)
class LinkTemplate:
    """An address with `{file}` and `{line}`, and optionally `{rev}`, in which positions are put."""

    text: str
    revision: str = ""

    def link(self, position: Position) -> str:
        parts = {"file": quote(position.file), "line": str(position.line), "rev": quote(self.revision, safe="")}
        address = self.text
        for name, value in parts.items():
            address = address.replace(f"{{{name}}}", value)
        return address


def render_page(report: ReportData, *, links: LinkTemplate | None = None) -> str:
    """Return the page. Equal reports and links give equal bytes."""
    style = _style()
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    numbers = {name: number for number, name in enumerate(TITLES)}
    return (
        _environment()
        .get_template("report/report.html")
        .render(
            summary=report.summary,
            s=report.sections,
            titles=TITLES,
            number=numbers.__getitem__,
            style=Markup(style),  # noqa: S704 - the style sheets of this package
            policy=_plain(f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"),
            link=_linker(links),
        )
    )


def show_text(text: str) -> Markup:
    """Return text as HTML: markup escaped, and each character that a screen would not draw as its number."""
    shown = [
        Markup('<span class="inv">{}</span>').format(piece.text) if piece.is_name else escape(piece.text)
        for piece in split_unseen(text)
    ]
    return Markup("").join(shown)


def show_lines(text: str) -> Markup:
    """Return text of several lines as HTML; only `\\n` ends a line."""
    return Markup("\n").join(show_text(line) for line in text.split("\n"))


def show_path(path: str) -> Markup:
    """Return a path as HTML that can be broken after each folder."""
    return Markup("/<wbr>").join(show_text(part) for part in path.split("/"))


def show_attribute(text: str) -> Markup:
    """Return text for an attribute: markup escaped, and hidden characters as their numbers."""
    return escape("".join(f"<{piece.text}>" if piece.is_name else piece.text for piece in split_unseen(text)))


def _finalize(value: Any) -> Any:
    return show_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _join(values: Any, separator: str = "") -> str:
    """Join texts before they are escaped, so that every one of them is."""
    return separator.join(map(str, values))


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _excerpt(text: str) -> str:
    more = len(text) - _LONGEST_EXCERPT
    return text if more <= 0 else f"{text[:_LONGEST_EXCERPT]}… ({more} more characters; the JSON has them)"


def _plain(text: str) -> Markup:
    """Return text that this package made, for an attribute."""
    return escape(text)


def _linker(links: LinkTemplate | None) -> Callable[[Position], Markup | None]:
    return lambda position: None if links is None else _plain(links.link(position))


@lru_cache(1)
def _style() -> str:
    return "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in _SHEETS)


@lru_cache(1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        join=_join,
        lines=show_lines,
        path=show_path,
        attribute=show_attribute,
        anchor=_plain,
        moment=_moment,
        excerpt=_excerpt,
    )
    environment.tests["absent"] = lambda value: isinstance(value, NoData)
    environment.globals["flag_icon"] = lambda name: _plain(_ICONS.get(name, "dot"))
    return environment
