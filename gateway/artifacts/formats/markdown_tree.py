"""Builds an MDAST-like tree from lines of Markdown, and extracts its links, images and plain text.

Lines are counted from 0 in the whole document. A block has its own lines; nodes inside a paragraph,
a heading or a table cell have the lines of that block. HTML is stored as text and not parsed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from markdown_it.common.utils import unescapeAll
from markdown_it.token import Token

from gateway.artifacts.formats.markdown_parser import MAX_NESTING, find_bare_urls, parse_markdown

MarkdownNode = dict[str, Any]


def build_tree(lines: Sequence[str], first_line: int = 0) -> MarkdownNode:
    """Build the syntax tree of some lines; `first_line` is the number of the first."""
    tokens = parse_markdown("\n".join(line.removesuffix("\r").replace("\r", " ") for line in lines))
    position = _position(first_line, first_line + max(len(lines) - 1, 0))
    root: MarkdownNode = {"type": "root", "children": [], "position": position}
    _BlockBuilder(root, first_line=first_line, last_written=_last_written_lines(lines)).build(tokens)
    return root


def walk(root: MarkdownNode) -> Iterator[MarkdownNode]:
    """Yield every node in document order, the root first."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.get("children", ())))


def find_links(root: MarkdownNode) -> list[MarkdownNode]:
    """Return inline links and bare addresses, but no references: their targets may be outside of the lines."""
    return [_to_entry(node, text=inline_text(node)) for node in walk(root) if node["type"] == "link"]


def find_images(root: MarkdownNode) -> list[MarkdownNode]:
    return [_to_entry(node, alt=node["alt"]) for node in walk(root) if node["type"] == "image"]


def plain_text(root: MarkdownNode) -> str:
    """Return the text without markup and HTML: blocks and table rows on separate lines, a tab between cells."""
    return "\n".join(text for text in _block_texts(root) if text)


def inline_text(node: MarkdownNode) -> str:
    """Return the text inside one block, with code and descriptions of images, without HTML."""
    match node["type"]:
        case "text" | "inlineCode":
            return str(node["value"])
        case "image" | "imageReference":
            return str(node["alt"])
        case "break":
            return "\n"
    return "".join(map(inline_text, node.get("children", ())))


def _to_entry(node: MarkdownNode, **first: str) -> MarkdownNode:
    title = {"title": node["title"]} if node["title"] else {}
    return {**first, "url": node["url"], **title}


def _block_texts(root: MarkdownNode) -> Iterator[str]:
    pending = [root]
    while pending:
        node = pending.pop()
        match node["type"]:
            case "paragraph" | "heading":
                yield inline_text(node)
            case "code":
                yield node["value"]
            case "tableRow":
                yield "\t".join(map(inline_text, node["children"]))
            case _:
                pending.extend(reversed(node.get("children", ())))


class _BlockBuilder:
    """Builds the blocks of a tree; an open block is on the stack until its closing token."""

    def __init__(self, root: MarkdownNode, *, first_line: int, last_written: Sequence[int]) -> None:
        self._stack = [root]
        self._first_line = first_line
        self._last_written_lines = last_written

    def build(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            if token.type == "inline":
                _InlineBuilder(self._stack[-1]).build(token.children or ())
            elif token.nesting < 0:
                self._stack.pop()
            else:
                self._add(token)

    def _add(self, token: Token) -> None:
        parent = self._stack[-1]
        if token.type in ("thead_open", "tbody_open"):  # MDAST has rows only
            self._stack.append(parent)
            return
        node = _BLOCKS[token.type](token)
        if token.type == "th_open":
            self._stack[-2]["align"].append(_alignment(token))
        if token.nesting > 0:
            node["children"] = []
            self._stack.append(node)
        node["position"] = self._lines(token) or parent["position"]
        parent["children"].append(node)

    def _lines(self, token: Token) -> MarkdownNode | None:
        if token.map is None:
            return None
        start, end = token.map[0], token.map[1] - 1
        if token.type.endswith(("list_open", "list_item_open")):  # the parser includes blank lines after them
            end = max(start, self._last_written_lines[end])
        return _position(self._first_line + start, self._first_line + end)


class _InlineBuilder:
    """Builds the nodes inside one block. Adjacent pieces of text become one node."""

    def __init__(self, block: MarkdownNode) -> None:
        self._stack = [block]
        self._position = block["position"]
        self._pieces: list[str] = []
        self._links = 0

    def build(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            if token.type == "text" and not self._links:
                self._add_text(token.content)
            elif token.type in ("text", "text_special"):
                self._pieces.append(token.content)
            elif token.type == "softbreak":
                self._pieces.append("\n")
            elif token.nesting < 0:
                self._close(token)
            else:
                self._add(token)
        self._flush()

    def _add_text(self, text: str) -> None:
        done = 0
        for start, end, url in find_bare_urls(text):
            self._pieces.append(text[done:start])
            self._flush()
            label = {"type": "text", "value": text[start:end], "position": self._position}
            link = {"type": "link", "url": url, "title": None, "children": [label], "position": self._position}
            self._stack[-1]["children"].append(link)
            done = end
        self._pieces.append(text[done:])

    def _add(self, token: Token) -> None:
        self._flush()
        parent = self._stack[-1]
        if token.type == "link_open":
            self._links += 1
        elif token.nesting > 0 and len(self._stack) > MAX_NESTING:  # a run of asterisks nests once per character
            self._stack.append(parent)
            return
        node = _INLINES[token.type](token)
        if token.nesting > 0:
            node["children"] = []
            self._stack.append(node)
        node["position"] = self._position
        parent["children"].append(node)

    def _close(self, token: Token) -> None:
        self._flush()
        self._stack.pop()
        if token.type == "link_close":
            self._links -= 1

    def _flush(self) -> None:
        if value := "".join(self._pieces):
            self._stack[-1]["children"].append({"type": "text", "value": value, "position": self._position})
        self._pieces.clear()


def _position(start: int, end: int) -> MarkdownNode:
    return {"start": {"line": start}, "end": {"line": end}}


def _last_written_lines(lines: Sequence[str]) -> list[int]:
    """Return for each line the last line up to it that is not blank."""
    ends: list[int] = []
    for number, line in enumerate(lines):
        ends.append(number if line.strip() or not ends else ends[-1])
    return ends


def _list(token: Token) -> MarkdownNode:
    if token.type == "bullet_list_open":
        return {"type": "list", "ordered": False, "start": None}
    start = token.attrGet("start")  # absent if it is 1
    return {"type": "list", "ordered": True, "start": 1 if start is None else start}


def _list_item(token: Token) -> MarkdownNode:
    return {"type": "listItem", "checked": token.meta.get("checked")}


def _code(token: Token) -> MarkdownNode:
    language, _, meta = unescapeAll(token.info).strip().partition(" ")
    return {
        "type": "code",
        "lang": language or None,
        "meta": meta.strip() or None,
        "value": token.content.removesuffix("\n"),
    }


def _definition(token: Token) -> MarkdownNode:
    found = token.meta
    return {
        "type": "definition",
        "identifier": found["id"].lower(),
        "label": found["label"],
        "url": found["url"],
        "title": found["title"] or None,
    }


def _type_of(kind: str, token: Token) -> MarkdownNode:
    """Return the type of a link or image; a reference also has the identifier of its definition."""
    label = token.meta.get("label")
    return {"type": kind} if label is None else {"type": f"{kind}Reference", "identifier": label.lower()}


def _link(token: Token) -> MarkdownNode:
    return {**_type_of("link", token), "url": token.attrGet("href"), "title": token.attrGet("title")}


def _image(token: Token) -> MarkdownNode:
    return {
        **_type_of("image", token),
        "url": token.attrGet("src"),
        "title": token.attrGet("title"),
        "alt": _alternative(token),
    }


def _alternative(token: Token) -> str:
    """Return the description of an image without markup."""
    parts = []
    for child in token.children or ():
        if child.type in ("softbreak", "hardbreak"):
            parts.append("\n")
        elif child.type != "html_inline":
            parts.append(_alternative(child) if child.type == "image" else child.content)
    return "".join(parts)


def _alignment(token: Token) -> str | None:
    style = token.attrGet("style")
    return str(style).removeprefix("text-align:") if style else None


_BLOCKS: Final[Mapping[str, Callable[[Token], MarkdownNode]]] = {
    "heading_open": lambda token: {"type": "heading", "depth": int(token.tag[1:])},
    "paragraph_open": lambda token: {"type": "paragraph"},
    "blockquote_open": lambda token: {"type": "blockquote"},
    "bullet_list_open": _list,
    "ordered_list_open": _list,
    "list_item_open": _list_item,
    "table_open": lambda token: {"type": "table", "align": []},
    "tr_open": lambda token: {"type": "tableRow"},
    "th_open": lambda token: {"type": "tableCell"},
    "td_open": lambda token: {"type": "tableCell"},
    "fence": _code,
    "code_block": _code,
    "html_block": lambda token: {"type": "html", "value": token.content.removesuffix("\n")},
    "hr": lambda token: {"type": "thematicBreak"},
    "definition": _definition,
}
_INLINES: Final[Mapping[str, Callable[[Token], MarkdownNode]]] = {
    "em_open": lambda token: {"type": "emphasis"},
    "strong_open": lambda token: {"type": "strong"},
    "s_open": lambda token: {"type": "delete"},
    "link_open": _link,
    "image": _image,
    "code_inline": lambda token: {"type": "inlineCode", "value": token.content},
    "html_inline": lambda token: {"type": "html", "value": token.content},
    "hardbreak": lambda token: {"type": "break"},
}
