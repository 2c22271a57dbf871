"""The line scan: which lines are headings, fences and front matter, and where each of them ends."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.artifacts.formats.markdown_artifact import (
    CodeBlock,
    Heading,
    MarkdownStructure,
    StructureScan,
    fence_language,
    heading_text,
)


def scan(text: str) -> MarkdownStructure:
    structure = StructureScan()
    structure.feed(text.split("\n") if text else [])
    return structure.finish()


def headings(text: str) -> list[tuple[int, int, int]]:
    return [(found.depth, found.line, found.end_line) for found in scan(text).headings()]


def blocks(text: str) -> list[tuple[int, int]]:
    return [(found.line, found.end_line) for found in scan(text).code_blocks()]


@pytest.mark.parametrize(
    ("line", "depth"),
    [
        pytest.param("# one", 1, id="one hash"),
        pytest.param("###### six", 6, id="six hashes"),
        pytest.param("####### seven", None, id="seven hashes"),
        pytest.param("#tag", None, id="no white space"),
        pytest.param("#", None, id="hash alone"),
        pytest.param("# ", 1, id="hash and space"),
        pytest.param("#\ttab", 1, id="tab"),
        pytest.param("#\u00a0wide", 1, id="no-break space"),
        pytest.param(" # indented", None, id="not at column 0"),
        pytest.param("\t# tab first", None, id="tab before it"),
        pytest.param("> # quoted", None, id="in a quote"),
        pytest.param("- # item", None, id="in a list"),
        pytest.param("\\# escaped", None, id="escaped"),
        pytest.param("## closed ##", 2, id="trailing hashes"),
        pytest.param("# cr\r", 1, id="carriage return"),
        pytest.param("#\r", None, id="hash and carriage return"),
        pytest.param("", None, id="blank"),
        pytest.param("plain", None, id="plain"),
    ],
)
def test_heading_is_hashes_then_white_space_at_column_zero(line: str, depth: int | None) -> None:
    assert headings(line) == ([] if depth is None else [(depth, 0, 0)])


@pytest.mark.parametrize("underline", ["===", "---"])
def test_underlined_text_is_no_heading(underline: str) -> None:
    assert headings(f"text\n{underline}\nmore") == []


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("# plain", "plain"),
        ("## closed ##", "closed ##"),
        ("#   wide   ", "wide"),
        ("# # hash", "# hash"),
        ("# ", ""),
        ("# *kept* `markup`", "*kept* `markup`"),
        ("# cr\r", "cr"),
    ],
)
def test_heading_text_is_everything_after_the_hashes(line: str, text: str) -> None:
    assert heading_text(line) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("# a\n# b", [(1, 0, 0), (1, 1, 1)], id="next of the same depth"),
        pytest.param("# a\nx\n## b\ny", [(1, 0, 3), (2, 2, 3)], id="deeper ones are inside"),
        pytest.param("## a\nx\n# b", [(2, 0, 1), (1, 2, 2)], id="smaller depth ends it"),
        pytest.param("### a\n## b\n### c\n# d", [(3, 0, 0), (2, 1, 2), (3, 2, 2), (1, 3, 3)], id="mixed"),
        pytest.param("# a\nx\n", [(1, 0, 2)], id="the final empty line counts"),
        pytest.param("x\n# a", [(1, 1, 1)], id="text before it"),
        pytest.param("# a\n###### b\n###### c\n# d", [(1, 0, 2), (6, 1, 1), (6, 2, 2), (1, 3, 3)], id="deepest"),
    ],
)
def test_heading_ends_before_the_next_one_not_deeper(text: str, found: list[tuple[int, int, int]]) -> None:
    assert headings(text) == found


def test_headings_can_be_asked_for_by_depth() -> None:
    structure = scan("# a\n## b\n# c\n## d")

    assert list(structure.headings(2)) == [Heading(2, 1, 1), Heading(2, 3, 3)]
    assert list(structure.headings(3)) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("```\nx\n```", [(0, 2)], id="backticks"),
        pytest.param("~~~\nx\n~~~", [(0, 2)], id="tildes"),
        pytest.param("``\nx\n``", [], id="two are too few"),
        pytest.param("          ```\nx\n\t\t```", [(0, 2)], id="any indentation"),
        pytest.param("text ```\nx", [], id="text before it"),
        pytest.param("```\nx\n~~~\n```", [(0, 3)], id="another character does not close"),
        pytest.param("````\nx\n```\n````", [(0, 3)], id="shorter does not close"),
        pytest.param("```\nx\n`````", [(0, 2)], id="longer closes"),
        pytest.param("```\nx\n``` trailing text", [(0, 2)], id="trailing text closes"),
        pytest.param("```\nx\n```js", [(0, 2)], id="a glued word closes"),
        pytest.param("```\nx\ny", [(0, 2)], id="unclosed"),
        pytest.param("```\nx\n", [(0, 2)], id="unclosed with a final empty line"),
        pytest.param("```", [(0, 0)], id="unclosed on the last line"),
        pytest.param("```\n```\n```\n```", [(0, 1), (2, 3)], id="one after the other"),
        pytest.param("```\r\nx\r\n```\r", [(0, 2)], id="carriage returns"),
        pytest.param("> ```\nx", [], id="in a quote"),
    ],
)
def test_fence_runs_until_its_like(text: str, found: list[tuple[int, int]]) -> None:
    assert blocks(text) == found


@pytest.mark.parametrize(
    ("line", "language"),
    [
        ("```", None),
        ("```py", "py"),
        ("```py title=x", "py"),
        ("``` py", None),
        ("````c++", "c++"),
        ("~~~{.python}", "{.python}"),
        ("  ```js", "js"),
        ("```js\r", "js"),
        ("```\r", None),
        ("```a```", "a```"),
        ("no fence", None),
    ],
)
def test_language_is_the_word_glued_to_the_fence(line: str, language: str | None) -> None:
    assert fence_language(line) == language


def test_heading_inside_a_fence_is_code() -> None:
    assert headings("```\n# comment\n```\n# heading") == [(1, 3, 3)]


@pytest.mark.parametrize(
    ("text", "end", "found"),
    [
        pytest.param("---\n# title: x\n---\n# a", 2, [(1, 3, 3)], id="closed"),
        pytest.param("---\n---\n# a", 1, [(1, 2, 2)], id="empty"),
        pytest.param("---\n# a\n```\n# b", None, [], id="never closed"),
        pytest.param("---", None, [], id="alone"),
        pytest.param("\n---\n# a\n---", None, [(1, 2, 3)], id="not on line 0"),
        pytest.param("--- \n# a\n---", None, [(1, 1, 2)], id="trailing space"),
        pytest.param("----\n# a\n---", None, [(1, 1, 2)], id="four dashes"),
        pytest.param("---\n# a\n--- \n----\n---\n# b", 4, [(1, 5, 5)], id="only three dashes close"),
        pytest.param("---\r\nx\r\n---\r\n# a\r", 2, [(1, 3, 3)], id="carriage returns"),
        pytest.param("---\nx\n---\n# a\n---\n# b", 2, [(1, 3, 4), (1, 5, 5)], id="later dashes are text"),
        pytest.param("---\n" + "x\n" * 300 + "---\n# a", 301, [(1, 302, 302)], id="closed after 200 lines"),
    ],
)
def test_front_matter_hides_what_is_inside(text: str, end: int | None, found: list[tuple[int, int, int]]) -> None:
    assert scan(text).front_matter_end == end
    assert headings(text) == found


def test_fence_inside_front_matter_opens_nothing() -> None:
    assert blocks("---\n```\n---\n# a\n```\nx\n```") == [(4, 6)]


def test_empty_document_has_no_structure() -> None:
    structure = scan("")

    assert list(structure.headings()) == []
    assert list(structure.code_blocks()) == []
    assert structure.front_matter_end is None


def test_scan_can_be_finished_more_than_once() -> None:
    structure = StructureScan()
    structure.feed(["# a", "```"])

    assert list(structure.finish().code_blocks()) == [CodeBlock(1, 1)]
    structure.feed(["x", "```", "# b"])
    assert list(structure.finish().code_blocks()) == [CodeBlock(1, 3)]
    assert list(structure.finish().headings()) == [Heading(1, 0, 3), Heading(1, 4, 4)]


LINES = st.sampled_from(
    ["", "text", "# one", "## two", "### three", "###### six", "#tag", "```", "````py", "~~~", "  ~~~~", "---", "=="]
)
DOCUMENTS = st.lists(LINES, max_size=40)


@given(DOCUMENTS)
def test_headings_nest_like_brackets(lines: Sequence[str]) -> None:
    found = list(scan("\n".join(lines)).headings())

    for outer, inner in pairwise(found):
        assert outer.line < inner.line <= inner.end_line
        assert inner.line > outer.end_line or (inner.end_line <= outer.end_line and inner.depth > outer.depth)


@given(DOCUMENTS)
def test_code_blocks_hold_no_heading_and_do_not_overlap(lines: Sequence[str]) -> None:
    structure = scan("\n".join(lines))
    found = list(structure.code_blocks())

    assert all(block.line <= block.end_line for block in found)
    assert all(first.end_line < second.line for first, second in pairwise(found))
    for block in found:
        assert not any(block.line <= heading.line <= block.end_line for heading in structure.headings())


@given(DOCUMENTS)
def test_carriage_returns_change_nothing(lines: Sequence[str]) -> None:
    assert scan("\r\n".join(lines)) == scan("\n".join(lines))


@given(DOCUMENTS, st.integers(min_value=1, max_value=5))
def test_size_of_the_pieces_changes_nothing(lines: Sequence[str], size: int) -> None:
    whole, pieces = StructureScan(), StructureScan()

    whole.feed(lines)
    for start in range(0, len(lines), size):
        pieces.feed(lines[start : start + size])

    assert pieces.finish() == whole.finish()
