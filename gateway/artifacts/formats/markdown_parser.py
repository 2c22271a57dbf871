"""Parser of Markdown: CommonMark with GitHub's tables, strikethrough, task lists and bare addresses.

Documents come from untrusted authors, so every parse has a budget of work, which gives the same result on every
machine. Nothing is rendered, and links are reported as written, whatever they point to.
"""

import re
from functools import cache
from typing import Any, Final

import linkify_it
from markdown_it import MarkdownIt
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from gateway.errors import AnswerTooLarge, ArtifactError

MAX_TEXT: Final = 1 << 20
"""Characters in one parse. Ordinary prose of this length takes one or two seconds."""

MAX_NESTING: Final = 100
MAX_TOKENS: Final = 400_000
"""Tokens in one parse: about 120 MB."""

MAX_WORK: Final = 3_000_000
"""Budget of one parse, in units of about a microsecond."""

MAX_ADDRESS: Final = 2048
"""Characters of a bare address; the patterns that find addresses take quadratic time."""

_METER: Final = "meter"
_SCHEME: Final = re.compile(r"(?:^|[^a-z0-9])(https?|ftp)$", re.IGNORECASE)


class ParseBudget:
    """The remaining work that one parse may do."""

    __slots__ = ("_left",)

    def __init__(self, work: int) -> None:
        self._left = work

    def spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise size_error("the lines hold too much markup to be parsed at once")


def size_error(message: str) -> AnswerTooLarge:
    return AnswerTooLarge(message, help="pass startLine and endLine, for example those of one section")


def parse_markdown(text: str, *, work: int = MAX_WORK) -> list[Token]:
    """Return the tokens of a text whose lines end at `\\n`. Raises `AnswerTooLarge` if it takes too much work."""
    if len(text) > MAX_TEXT:
        raise size_error("the lines hold too much text to be parsed at once")
    if text.count("|") * 3 > MAX_TOKENS:  # each may be a table cell, and a table is built in one step
        raise size_error("the lines hold too many table cells to be parsed at once")
    tokens = _parser().parse(text, {_METER: ParseBudget(work)})
    if any(token.level >= MAX_NESTING - 1 and token.type in ("blockquote_open", "list_item_open") for token in tokens):
        # the parser silently drops deeper levels
        raise ArtifactError(
            f"the lists and quotes are nested deeper than {MAX_NESTING} levels",
            help="read the lines with artifact_cat instead",
        )
    return tokens


def find_bare_urls(text: str) -> list[tuple[int, int, str]]:
    """Return start, end and URL of `www.` and e-mail addresses; `parse_markdown` finds those with a scheme."""
    if "@" not in text and "www." not in text:
        return []
    found: list[tuple[int, int, str]] = []
    for word in re.finditer(r"\S+", text):
        if len(word.group()) <= MAX_ADDRESS and ("@" in word.group() or "www." in word.group()):
            for match in _linkify().match(word.group()) or ():
                url = f"http://{match.url}" if match.schema == "www." else match.url
                found.append((word.start() + match.index, word.start() + match.last_index, url))
    return found


class _MarkdownParser(MarkdownIt):
    """Reports links as written: nothing is rendered, so links need no sanitising."""

    def validateLink(self, url: str) -> bool:  # noqa: N802  # the library's name
        return True

    def normalizeLink(self, url: str) -> str:  # noqa: N802  # the library's name
        return url

    def normalizeLinkText(self, link: str) -> str:  # noqa: N802  # the library's name
        return link


class _MeteredInline(ParserInline):
    def skipToken(self, state: StateInline) -> None:  # noqa: N802  # the library's name
        state.env[_METER].spend(1)  # even if cached: unmatched brackets are skipped many times
        super().skipToken(state)


@cache
def _parser() -> MarkdownIt:
    options = {
        "maxNesting": MAX_NESTING,
        "linkify": False,  # its rules take quadratic time; see `_bare_url` and `find_bare_urls`
        "tasklists": True,
        "strikethrough_single_tilde": True,
        "store_labels": True,
        "inline_definitions": True,
    }
    parser = _MarkdownParser("gfm-like", options)
    parser.inline = _MeteredInline()
    parser.configure("gfm-like", options)
    parser.disable("text_join")  # keep escaped characters separate, so that they end a bare address
    parser.block.ruler.before("table", _METER, _meter_block, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    parser.inline.ruler.before("text", _METER, _meter_inline)
    parser.inline.ruler.at("linkify", _bare_url)
    return parser


@cache
def _linkify() -> Any:
    """Return a linkifier that finds what GitHub does: a scheme, `www.` or an e-mail address, but not `README.md`."""
    linkify = linkify_it.LinkifyIt(options={"fuzzy_link": False}).add("//", None).tlds("[a-z]{2,63}")
    host = linkify.re["src_host_port_strict"] + linkify.re["src_path"]
    return linkify.add("www.", {"validate": re.compile(f"^{host}", re.IGNORECASE)})


def _meter_block(state: StateBlock, line: int, end_line: int, silent: bool) -> bool:
    state.env[_METER].spend(4 + (state.eMarks[line] - state.bMarks[line]) // 4)
    if len(state.tokens) > MAX_TOKENS:
        raise size_error("the lines hold too many blocks to be parsed at once")
    return False


def _meter_inline(state: StateInline, silent: bool) -> bool:
    state.env[_METER].spend(8)
    return False


def _bare_url(state: StateInline, silent: bool) -> bool:
    """Parse an address with a scheme, found at its colon, before underscores in it become emphasis."""
    if silent or state.linkLevel > 0 or not state.src.startswith("://", state.pos):
        return False
    scheme = _SCHEME.search(state.pending[-8:])
    if scheme is None:
        return False
    length = len(scheme.group(1))
    start = state.pos - length
    window = state.src[start : min(state.posMax, start + MAX_ADDRESS)]
    match = _linkify().match_at_start(window)
    if match is None or match.last_index == MAX_ADDRESS:
        return False
    url = match.url.rstrip("*_~")
    state.pending = state.pending[:-length]
    _push_link(state, url)
    state.pos = start + len(url)
    return True


def _push_link(state: StateInline, url: str) -> None:
    state.push("link_open", "a", 1).attrs = {"href": url}
    state.push("text_special", "", 0).content = url
    state.push("link_close", "a", -1)
