"""Lines of Markdown to an MDAST-like tree, and what can be read off one: its links, images and plain text.

Lines are counted from 0 in the whole document. A block carries its own lines; what is inside a paragraph,
a heading or a table cell carries the lines of that block. HTML is kept as text and never looked into.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from markdown_it.common.utils import unescapeAll
from markdown_it.token import Token

from gateway.formats.markdown_parser import MAX_NESTING, bare_addresses, parse

Node = dict[str, Any]


def tree(lines: Sequence[str], first_line: int = 0) -> Node:
    """The syntax tree of some lines; `first_line` is where they begin in the document."""
    tokens = parse("\n".join(line.removesuffix("\r").replace("\r", " ") for line in lines))
    position = _position(first_line, first_line + max(len(lines) - 1, 0))
    root: Node = {"type": "root", "children": [], "position": position}
    _Blocks(root, first_line=first_line, written_ends=_written_ends(lines)).grow(tokens)
    return root


def walk(root: Node) -> Iterator[Node]:
    """Every node in the order of the document, the root first."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.get("children", ())))


def links(root: Node) -> list[Node]:
    """Inline links and bare addresses. References are not among them: their targets may lie outside the lines."""
    return [_answer(node, text=inline_text(node)) for node in walk(root) if node["type"] == "link"]


def images(root: Node) -> list[Node]:
    return [_answer(node, alt=node["alt"]) for node in walk(root) if node["type"] == "image"]


def plain_text(root: Node) -> str:
    """The text without markup: blocks and table rows on lines of their own, a tab between cells, no HTML."""
    return "\n".join(text for text in _block_texts(root) if text)


def inline_text(node: Node) -> str:
    """The text inside one block: code and the descriptions of images included, HTML left out."""
    match node["type"]:
        case "text" | "inlineCode":
            return str(node["value"])
        case "image" | "imageReference":
            return str(node["alt"])
        case "break":
            return "\n"
    return "".join(map(inline_text, node.get("children", ())))


def _answer(node: Node, **first: str) -> Node:
    title = {"title": node["title"]} if node["title"] else {}
    return {**first, "url": node["url"], **title}


def _block_texts(root: Node) -> Iterator[str]:
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


class _Blocks:
    """Grows the blocks of a tree; an open block is on the stack until its closing token comes."""

    def __init__(self, root: Node, *, first_line: int, written_ends: Sequence[int]) -> None:
        self._stack = [root]
        self._first_line = first_line
        self._written_ends = written_ends

    def grow(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            if token.type == "inline":
                _Inlines(self._stack[-1]).grow(token.children or ())
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

    def _lines(self, token: Token) -> Node | None:
        if token.map is None:
            return None
        start, end = token.map[0], token.map[1] - 1
        if token.type.endswith(("list_open", "list_item_open")):  # the parser counts blank lines after them
            end = max(start, self._written_ends[end])
        return _position(self._first_line + start, self._first_line + end)


class _Inlines:
    """Grows what is inside one block. Pieces of text wait until something else comes, and become one node."""

    def __init__(self, block: Node) -> None:
        self._stack = [block]
        self._position = block["position"]
        self._pieces: list[str] = []
        self._links = 0

    def grow(self, tokens: Iterable[Token]) -> None:
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
        for start, end, url in bare_addresses(text):
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
        elif token.nesting > 0 and len(self._stack) > MAX_NESTING:  # a run of asterisks nests as deep as it is long
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


def _position(start: int, end: int) -> Node:
    return {"start": {"line": start}, "end": {"line": end}}


def _written_ends(lines: Sequence[str]) -> list[int]:
    """For each line the last one up to it that is not blank."""
    ends: list[int] = []
    for number, line in enumerate(lines):
        ends.append(number if line.strip() or not ends else ends[-1])
    return ends


def _list(token: Token) -> Node:
    if token.type == "bullet_list_open":
        return {"type": "list", "ordered": False, "start": None}
    start = token.attrGet("start")  # left out where it is 1
    return {"type": "list", "ordered": True, "start": 1 if start is None else start}


def _list_item(token: Token) -> Node:
    return {"type": "listItem", "checked": token.meta.get("checked")}


def _code(token: Token) -> Node:
    language, _, meta = unescapeAll(token.info).strip().partition(" ")
    return {
        "type": "code",
        "lang": language or None,
        "meta": meta.strip() or None,
        "value": token.content.removesuffix("\n"),
    }


def _definition(token: Token) -> Node:
    found = token.meta
    return {
        "type": "definition",
        "identifier": found["id"].lower(),
        "label": found["label"],
        "url": found["url"],
        "title": found["title"] or None,
    }


def _reference_or(kind: str, token: Token) -> Node:
    """Says which definition a reference names, besides where it leads."""
    label = token.meta.get("label")
    return {"type": kind} if label is None else {"type": f"{kind}Reference", "identifier": label.lower()}


def _link(token: Token) -> Node:
    return {**_reference_or("link", token), "url": token.attrGet("href"), "title": token.attrGet("title")}


def _image(token: Token) -> Node:
    return {
        **_reference_or("image", token),
        "url": token.attrGet("src"),
        "title": token.attrGet("title"),
        "alt": _alternative(token),
    }


def _alternative(token: Token) -> str:
    """The description of an image without its markup."""
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


_BLOCKS: Final[Mapping[str, Callable[[Token], Node]]] = {
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
_INLINES: Final[Mapping[str, Callable[[Token], Node]]] = {
    "em_open": lambda token: {"type": "emphasis"},
    "strong_open": lambda token: {"type": "strong"},
    "s_open": lambda token: {"type": "delete"},
    "link_open": _link,
    "image": _image,
    "code_inline": lambda token: {"type": "inlineCode", "value": token.content},
    "html_inline": lambda token: {"type": "html", "value": token.content},
    "hardbreak": lambda token: {"type": "break"},
}
