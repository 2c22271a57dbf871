"""The Markdown syntax tree, its queries, and the cost of hostile input."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.artifacts.formats.markdown_parser import MAX_ADDRESS, MAX_NESTING, MAX_TEXT, MAX_TOKENS, parse_markdown
from gateway.artifacts.formats.markdown_tree import build_tree, find_images, find_links, plain_text, walk
from gateway.errors import AnswerTooLarge, ArtifactError
from gateway.model.primitives.canonical_json import to_pretty_json


def parsed(text: str) -> dict[str, Any]:
    return build_tree(text.split("\n"))


def bare(node: dict[str, Any]) -> dict[str, Any]:
    """A node without positions, including its children."""
    kept = {key: value for key, value in node.items() if key != "position"}
    return kept | ({"children": [bare(child) for child in node["children"]]} if "children" in node else {})


def blocks(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bare(parsed(text))["children"]
    return found


def inlines(text: str) -> list[dict[str, Any]]:
    (paragraph,) = blocks(text)
    assert paragraph["type"] == "paragraph"
    found: list[dict[str, Any]] = paragraph["children"]
    return found


def text_node(value: str) -> dict[str, Any]:
    return {"type": "text", "value": value}


def paragraph_node(value: str) -> dict[str, Any]:
    return {"type": "paragraph", "children": [text_node(value)]}


def code_node(value: str, lang: str | None = None, meta: str | None = None) -> dict[str, Any]:
    return {"type": "code", "lang": lang, "meta": meta, "value": value}


@pytest.mark.parametrize(
    ("text", "node"),
    [
        pytest.param("## a", {"type": "heading", "depth": 2, "children": [text_node("a")]}, id="heading"),
        pytest.param("a\n=", {"type": "heading", "depth": 1, "children": [text_node("a")]}, id="underlined heading"),
        pytest.param("#", {"type": "heading", "depth": 1, "children": []}, id="empty heading"),
        pytest.param("a\nb", paragraph_node("a\nb"), id="paragraph over two lines"),
        pytest.param("> a", {"type": "blockquote", "children": [paragraph_node("a")]}, id="quote"),
        pytest.param("```\na\n```", code_node("a"), id="fence"),
        pytest.param("``` py  x=1\na\n```", code_node("a", "py", "x=1"), id="fence with info"),
        pytest.param("~~~\na\n\nb", code_node("a\n\nb"), id="unclosed fence"),
        pytest.param("```\n```", code_node(""), id="empty fence"),
        pytest.param("    a\n    b", code_node("a\nb"), id="indented code"),
        pytest.param("***", {"type": "thematicBreak"}, id="break between themes"),
        pytest.param("<div>\n*a*\n</div>", {"type": "html", "value": "<div>\n*a*\n</div>"}, id="html"),
        pytest.param(
            '[A b]: /u "t"',
            {"type": "definition", "identifier": "a b", "label": "A b", "url": "/u", "title": "t"},
            id="definition",
        ),
        pytest.param(
            "[a]: /u",
            {"type": "definition", "identifier": "a", "label": "a", "url": "/u", "title": None},
            id="definition without title",
        ),
    ],
)
def test_block_becomes_its_node(text: str, node: dict[str, Any]) -> None:
    assert blocks(text) == [node]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        pytest.param("*a*", [{"type": "emphasis", "children": [text_node("a")]}], id="emphasis"),
        pytest.param("__a__", [{"type": "strong", "children": [text_node("a")]}], id="strong"),
        pytest.param("~~a~~", [{"type": "delete", "children": [text_node("a")]}], id="strikethrough"),
        pytest.param("~a~", [{"type": "delete", "children": [text_node("a")]}], id="single tilde"),
        pytest.param("`a *b*`", [{"type": "inlineCode", "value": "a *b*"}], id="code"),
        pytest.param("a  \nb", [text_node("a"), {"type": "break"}, text_node("b")], id="hard break"),
        pytest.param("a\\*b &amp; c", [text_node("a*b & c")], id="escapes and entities"),
        pytest.param("<b>a", [{"type": "html", "value": "<b>"}, text_node("a")], id="inline html"),
        pytest.param(
            '[a *b*](/u "t")',
            [
                {
                    "type": "link",
                    "url": "/u",
                    "title": "t",
                    "children": [text_node("a "), {"type": "emphasis", "children": [text_node("b")]}],
                }
            ],
            id="link",
        ),
        pytest.param(
            "[a]()", [{"type": "link", "url": "", "title": None, "children": [text_node("a")]}], id="empty address"
        ),
        pytest.param("![a](/u)", [{"type": "image", "url": "/u", "title": None, "alt": "a"}], id="image"),
        pytest.param("![](/u 't')", [{"type": "image", "url": "/u", "title": "t", "alt": ""}], id="silent image"),
        pytest.param("[a][b]", [text_node("[a][b]")], id="reference to nothing"),
    ],
)
def test_inline_becomes_its_node(text: str, nodes: list[dict[str, Any]]) -> None:
    assert inlines(text) == nodes


def test_reference_names_its_definition() -> None:
    paragraph, _ = blocks("[text][Ref] ![alt][ref]\n\n[ref]: /u 't'")

    assert paragraph["children"] == [
        {"type": "linkReference", "identifier": "ref", "url": "/u", "title": "t", "children": [text_node("text")]},
        text_node(" "),
        {"type": "imageReference", "identifier": "ref", "url": "/u", "title": "t", "alt": "alt"},
    ]


@pytest.mark.parametrize(
    ("text", "ordered", "start", "checked"),
    [
        pytest.param("- a", False, None, None, id="bullet"),
        pytest.param("1. a", True, 1, None, id="from one"),
        pytest.param("0. a", True, 0, None, id="from zero"),
        pytest.param("7) a", True, 7, None, id="from seven"),
        pytest.param("- [x] a", False, None, True, id="done"),
        pytest.param("- [ ] a", False, None, False, id="to do"),
        pytest.param("1. [X] a", True, 1, True, id="numbered task"),
    ],
)
def test_list_has_its_numbering_and_checkboxes(
    text: str, ordered: bool, start: int | None, checked: bool | None
) -> None:
    item = {"type": "listItem", "checked": checked, "children": [paragraph_node("a")]}

    assert blocks(text) == [{"type": "list", "ordered": ordered, "start": start, "children": [item]}]


def test_table_has_rows_cells_and_alignment() -> None:
    def row(*cells: str) -> dict[str, Any]:
        return {
            "type": "tableRow",
            "children": [{"type": "tableCell", "children": [text_node(cell)] if cell else []} for cell in cells],
        }

    text = "| a | b | c | d |\n|---|:--|--:|:-:|\n| 1 | 2 |\n| 3 | 4 | 5 | 6 | 7 |"

    assert blocks(text) == [
        {
            "type": "table",
            "align": [None, "left", "right", "center"],
            "children": [row("a", "b", "c", "d"), row("1", "2", "", ""), row("3", "4", "5", "6")],
        }
    ]


def lines_of(node: dict[str, Any]) -> tuple[int, int]:
    return node["position"]["start"]["line"], node["position"]["end"]["line"]


def test_positions_count_lines_of_the_whole_document() -> None:
    text = "# a\n\n- b\n\n  c\n\n\n> d\ne\n\n```\nf\n```\n\n|g|\n|-|\n|h|"

    root = build_tree(text.split("\n"), 100)

    assert lines_of(root) == (100, 116)
    assert [(node["type"], *lines_of(node)) for node in root["children"]] == [
        ("heading", 100, 100),
        ("list", 102, 104),
        ("blockquote", 107, 108),
        ("code", 110, 112),
        ("table", 114, 116),
    ]
    (item,) = root["children"][1]["children"]
    assert [lines_of(node) for node in (item, *item["children"])] == [(102, 104), (102, 102), (104, 104)]
    assert [lines_of(row) for row in root["children"][4]["children"]] == [(114, 114), (116, 116)]


def test_what_is_inside_a_block_carries_its_lines() -> None:
    (paragraph,) = build_tree(["a *b*", "[c](d)"], 3)["children"]

    assert {lines_of(node) for node in walk(paragraph)} == {(3, 4)}


def test_no_lines_give_an_empty_tree() -> None:
    assert build_tree([], 7) == {"type": "root", "children": [], "position": {"start": {"line": 7}, "end": {"line": 7}}}


def test_carriage_returns_move_no_line() -> None:
    lf = build_tree(["# a", "", "b  ", "c", "```", "d", "```"])

    assert build_tree(["# a\r", "\r", "b  \r", "c\r", "```\r", "d\r", "```\r"]) == lf
    assert [lines_of(node) for node in build_tree(["a\rb", "# c"])["children"]] == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("[a](/u)", [{"text": "a", "url": "/u"}], id="inline"),
        pytest.param('[a](/u "t")', [{"text": "a", "url": "/u", "title": "t"}], id="with title"),
        pytest.param("[a *b* `c` ![d](e)](/u)", [{"text": "a b c d", "url": "/u"}], id="markup in its text"),
        pytest.param("[a\nb](/u)", [{"text": "a\nb", "url": "/u"}], id="over two lines"),
        pytest.param("[a](</u v>)", [{"text": "a", "url": "/u v"}], id="pointed brackets"),
        pytest.param("[a](/ü?x=1&amp;y)", [{"text": "a", "url": "/ü?x=1&y"}], id="as written"),
        pytest.param("[a](javascript:x)", [{"text": "a", "url": "javascript:x"}], id="hostile scheme is shown"),
        pytest.param("<http://a.b>", [{"text": "http://a.b", "url": "http://a.b"}], id="autolink"),
        pytest.param("<a@b.cc>", [{"text": "a@b.cc", "url": "mailto:a@b.cc"}], id="mail autolink"),
        pytest.param("see https://a.b/c.", [{"text": "https://a.b/c", "url": "https://a.b/c"}], id="bare"),
        pytest.param("(http://a.b)", [{"text": "http://a.b", "url": "http://a.b"}], id="bare in parentheses"),
        pytest.param("*http://a.b*", [{"text": "http://a.b", "url": "http://a.b"}], id="bare in emphasis"),
        pytest.param(
            "http://a.b/__init__.py", [{"text": "http://a.b/__init__.py", "url": "http://a.b/__init__.py"}], id="dunder"
        ),
        pytest.param("HTTPS://A.b", [{"text": "HTTPS://A.b", "url": "HTTPS://A.b"}], id="upper case"),
        pytest.param("ftp://a.b", [{"text": "ftp://a.b", "url": "ftp://a.b"}], id="ftp"),
        pytest.param("www.a.de/b", [{"text": "www.a.de/b", "url": "http://www.a.de/b"}], id="www"),
        pytest.param("x@host.museum", [{"text": "x@host.museum", "url": "mailto:x@host.museum"}], id="long root"),
        pytest.param("x@localhost x@1.2", [], id="no host"),
        pytest.param("mail a@b.cc, or", [{"text": "a@b.cc", "url": "mailto:a@b.cc"}], id="mail"),
        pytest.param("mailto:a@b.cc", [{"text": "mailto:a@b.cc", "url": "mailto:a@b.cc"}], id="mailto"),
        pytest.param("README.md main.py a.com", [], id="file names"),
        pytest.param("//a.com/b", [], id="no scheme"),
        pytest.param("xhttp://a.b", [], id="another scheme"),
        pytest.param("http:// a.b", [], id="scheme alone"),
        pytest.param("://a.b", [], id="colon alone"),
        pytest.param("`http://a.b www.a.b`", [], id="in code"),
        pytest.param("    http://a.b", [], id="in a code block"),
        pytest.param("a\\@b.cc", [], id="escaped"),
        pytest.param(
            "[http://a.b www.a.b c@d.ee](/u)", [{"text": "http://a.b www.a.b c@d.ee", "url": "/u"}], id="in a link"
        ),
        pytest.param("[a][r] [r]\n\n[r]: /u", [], id="references"),
        pytest.param("![a](/u)", [], id="image"),
        pytest.param(
            "# [a](b)\n\n- > [c](d)\n\n|[e](f)|\n|-|",
            [{"text": x, "url": y} for x, y in ("ab", "cd", "ef")],
            id="anywhere",
        ),
    ],
)
def test_links_are_inline_links_and_addresses(text: str, found: list[dict[str, str]]) -> None:
    assert find_links(parsed(text)) == found


def test_overlong_address_is_left_as_text() -> None:
    fits = "http://a.b/" + "c" * (MAX_ADDRESS - 12)
    mail = "a" * MAX_ADDRESS + "@b.cc"

    assert [link["url"] for link in find_links(parsed(f"{fits} {fits}cc {mail} d@e.ff"))] == [fits, "mailto:d@e.ff"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("![a](/u)", [{"alt": "a", "url": "/u"}], id="plain"),
        pytest.param('![a](/u "t")', [{"alt": "a", "url": "/u", "title": "t"}], id="with title"),
        pytest.param("![](/u)", [{"alt": "", "url": "/u"}], id="no description"),
        pytest.param("![*a* `b`\nc<b>  \n\\*![d](e)](/u)", [{"alt": "a b\nc\n*d", "url": "/u"}], id="markup in it"),
        pytest.param("[![a](/u)](/v)", [{"alt": "a", "url": "/u"}], id="in a link"),
        pytest.param(
            "![a](data:image/png;base64,AA==)", [{"alt": "a", "url": "data:image/png;base64,AA=="}], id="data"
        ),
        pytest.param("![a][r]\n\n[r]: /u", [], id="reference"),
        pytest.param("<img src=x>", [], id="html"),
    ],
)
def test_images_are_inline_images(text: str, found: list[dict[str, str]]) -> None:
    assert find_images(parsed(text)) == found


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        pytest.param("# a\n\nb\n\n- c\n- d\n\n> e", "a\nb\nc\nd\ne", id="blocks on lines of their own"),
        pytest.param("*a* __b__ ~~c~~ [d](e) `f`", "a b c d f", id="markup is stripped"),
        pytest.param("a ![b](c)", "a b", id="alternative text"),
        pytest.param("```py\na\nb\n```\n\n    c", "a\nb\nc", id="code"),
        pytest.param("a <b>b</b>\n\n<div>c</div>\n\nd", "a b\nd", id="html is dropped"),
        pytest.param("<script>alert(1)</script>\n\n<b>", "", id="html alone"),
        pytest.param("a\nb  \nc", "a\nb\nc", id="breaks"),
        pytest.param("|a|b|\n|-|-|\n|c|`d`|", "a\tb\nc\td", id="table"),
        pytest.param("- [x] a", "a", id="task"),
        pytest.param("a\n\n---\n\nb", "a\nb", id="break between themes"),
        pytest.param("[a][r] ![b][r]\n\n[r]: /u", "a b", id="references"),
        pytest.param("www.a.b https://c.d", "www.a.b https://c.d", id="addresses"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_plain_text_keeps_words_only(text: str, plain: str) -> None:
    assert plain_text(parsed(text)) == plain


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(">" * 10_000 + "a", id="quotes on one line"),
        pytest.param("- " * 10_000 + "a", id="lists on one line"),
        pytest.param("\n".join("  " * level + "- a" for level in range(200)), id="lists line by line"),
        pytest.param("\n".join(">" * level + "a" for level in range(200)), id="quotes line by line"),
    ],
)
def test_deep_nesting_is_refused_not_dropped(text: str) -> None:
    with pytest.raises(ArtifactError, match=f"nested deeper than {MAX_NESTING} levels"):
        parsed(text)


def test_nesting_up_to_the_limit_keeps_its_text() -> None:
    root = parsed(">" * (MAX_NESTING - 1) + "a")

    assert plain_text(root) == "a"
    assert to_pretty_json(root)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("*" * 20_000 + "a" + "*" * 20_000, id="asterisks"),
        pytest.param("*a **b " * 2_000 + "c** d* " * 2_000, id="emphasis in emphasis"),
        pytest.param("![" * 90 + "a" + "](b)" * 90, id="images in images"),
        pytest.param("[a](b " * 2_000, id="links that never end"),
        pytest.param("a](b)" * 2_000, id="links that never start"),
        pytest.param("*a_ " * 5_000, id="crossing emphasis"),
        pytest.param("~~a ~b" * 3_000, id="strikethrough"),
        pytest.param("`a ``b ```c " * 2_000, id="backticks"),
        pytest.param("<a " * 5_000, id="tags that never end"),
        pytest.param("<!-- " * 5_000, id="comments that never end"),
        pytest.param("x://" * 10_000, id="colons and slashes"),
        pytest.param("http://" + "(" * 10_000, id="address of parentheses"),
        pytest.param("a@" * 10_000, id="at signs"),
        pytest.param("www." * 10_000, id="www without end"),
        pytest.param("".join(f"[r{number}]: /u\n" for number in range(5_000)), id="many definitions"),
        pytest.param("[a]: /u '" + "b\n" * 5_000, id="title that never ends"),
        pytest.param("\0\ud800\ufeff\u2028" * 100, id="odd characters"),
        pytest.param("\n" * 50_000, id="blank lines"),
        pytest.param("|a" * 100 + "|\n" + "|-" * 100 + "|\n" + "|b\n" * 100, id="table with holes"),
    ],
)
def test_hostile_markup_is_read_to_the_end(text: str) -> None:
    root = parsed(text)

    depth = max(map(depth_of, root["children"]), default=0)
    assert depth <= 2 * MAX_NESTING
    assert isinstance(plain_text(root), str)
    assert isinstance(find_links(root), list)


def depth_of(node: dict[str, Any]) -> int:
    return 1 + max(map(depth_of, node.get("children", ())), default=0)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 2_000, id="brackets"),
        pytest.param("![" * 1_000, id="images that never end"),
        pytest.param("![" * 90 + "a" + "](b)" * 90, id="images in images"),
        pytest.param("[a][" * 1_000 + "\n\n[b]: /u", id="references that never end"),
        pytest.param("[a\n" * 1_000, id="definitions that never end"),
        pytest.param(">" * 90 + "a\n" + "a\n" * 1_000, id="lazy lines in quotes"),
        pytest.param("- " * 10_000 + "a", id="one long line of lists"),
        pytest.param("*a_ " * 5_000, id="crossing emphasis"),
    ],
)
def test_work_is_refused_past_its_limit(text: str) -> None:
    with pytest.raises(AnswerTooLarge, match="too much markup"):
        parse_markdown(text, work=30_000)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a" * (MAX_TEXT + 1), id="characters"),
        pytest.param("|" * (MAX_TOKENS // 3 + 1), id="cells"),
        pytest.param(("|a" * 256 + "|\n" + "|-" * 256 + "|\n" + "|b\n" * 256 + "\n") * 4, id="tables full of holes"),
    ],
)
def test_too_much_at_once_is_refused_with_advice(text: str) -> None:
    with pytest.raises(AnswerTooLarge) as refused:
        parsed(text)

    assert refused.value.help == "pass startLine and endLine, for example those of one section"


def test_deep_emphasis_keeps_its_text_and_links() -> None:
    deep = MAX_NESTING + 20
    root = parsed("*a " * deep + "[b](c) `d`" + " e*" * deep)

    assert find_links(root) == [{"text": "b", "url": "c"}]
    assert plain_text(root) == "a " * deep + "b d" + " e" * deep


MARKUP = st.text(alphabet="ab \n#*_~`[]()!<>&|-=+1.:/@\\\t\"'", max_size=80)


@settings(max_examples=300)
@given(MARKUP)
def test_any_text_gives_a_printable_tree_inside_its_lines(text: str) -> None:
    root = parsed(text)

    last = len(text.split("\n")) - 1
    for node in walk(root):
        start, end = lines_of(node)
        assert 0 <= start <= end <= last
    assert to_pretty_json(root)
    assert set(plain_text(root)) <= set(text) | set(" \t\n")


@pytest.mark.parametrize("answer", [find_links, find_images, plain_text], ids=lambda answer: answer.__name__)
def test_empty_tree_has_an_empty_answer(answer: Callable[[dict[str, Any]], list[Any] | str]) -> None:
    assert not answer(parsed(""))
