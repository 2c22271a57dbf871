"""SpooledMarkdownArtifact: its answers over any reader, and the tools forged for it."""

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.artifacts.formats.markdown_artifact import MAX_FRONT_MATTER, MAX_TREE_NODES, SpooledMarkdownArtifact
from gateway.artifacts.indexed_reader import limit_answer
from gateway.artifacts.spool_stores import FileStore, InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.errors import AnswerTooLarge, ArtifactError, InvalidToolArgs, ToolDownstreamError, YamlParseError
from gateway.model.primitives.canonical_json import UNDEFINED, to_pretty_json
from gateway.model.tools.tool_call import ToolCall

pytestmark = pytest.mark.anyio

GUIDE = """---
title: Guide
tags: [a, b]
---
# Guide
Intro with a [link](/one "First").

## Install
```sh
# not a heading
make
```

## Use ##
~~~
plain
~~~
See www.example.org and ![a picture](/p.png).
"""


def markdown(text: str | bytes) -> SpooledMarkdownArtifact:
    return SpooledMarkdownArtifact(InMemoryReader(text))


class PlainReader:
    """A reader without byte ranges."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")

    async def line(self, index: int) -> str | None:
        return self._lines[index] if 0 <= index < len(self._lines) else None

    def byte_length(self) -> int:
        return sum(map(len, self._lines))

    async def line_count(self) -> int:
        return len(self._lines)

    def read_all(self) -> str:
        return "\n".join(self._lines)


@dataclass
class Turn:
    """The part of a context that forging and calling need."""

    turn_tool_calls: list[ToolCall]
    turn_id: str = "turn"
    dispatch_id: str = "dispatch"
    events: list[Any] = field(default_factory=list)

    def emit(self, event: Any) -> None:
        self.events.append(event)


def call(id: str, results: SpooledArtifact) -> ToolCall:
    moment = "2026-01-01T00:00:00Z"
    return ToolCall(
        id=id,
        tool="fetch",
        args={},
        is_complete=True,
        is_error=False,
        results=results,
        created_at=moment,
        updated_at=moment,
        completed_at=moment,
    )


async def ask(text: str, tool: str, **args: Any) -> str:
    turn = Turn([call("c1", markdown(text))])
    forged = SpooledMarkdownArtifact.forge_tools(turn).get(f"artifact_md_{tool}")
    assert forged is not None
    answer: str = await forged.executor(turn)({"callId": "c1", **args})
    return answer


async def test_headings_carry_text_and_lines() -> None:
    assert await markdown(GUIDE).md_headings() == [
        {"depth": 1, "text": "Guide", "startLine": 4, "endLine": 18},
        {"depth": 2, "text": "Install", "startLine": 7, "endLine": 12},
        {"depth": 2, "text": "Use ##", "startLine": 13, "endLine": 18},
    ]


async def test_headings_of_one_depth() -> None:
    assert [heading["text"] for heading in await markdown(GUIDE).md_headings(2)] == ["Install", "Use ##"]
    assert await markdown(GUIDE).md_headings(6) == []


async def test_sections_are_ranges_of_lines() -> None:
    guide = markdown(GUIDE)

    sections = await guide.md_sections(2)

    assert sections == [
        {"depth": 2, "heading": "Install", "headingLine": 7, "bodyStartLine": 8, "bodyEndLine": 12},
        {"depth": 2, "heading": "Use ##", "headingLine": 13, "bodyStartLine": 14, "bodyEndLine": 18},
    ]
    assert await guide.cat(8, 13) == ["```sh", "# not a heading", "make", "```", ""]


async def test_empty_section_ends_before_it_starts() -> None:
    first, last = await markdown("# a\n# b").md_sections()

    assert (first["bodyStartLine"], first["bodyEndLine"]) == (1, 0)
    assert (last["bodyStartLine"], last["bodyEndLine"]) == (2, 1)


@pytest.mark.parametrize(
    ("lang", "lines"),
    [
        pytest.param(None, [(8, 11), (14, 16)], id="all"),
        pytest.param("sh", [(8, 11)], id="one language"),
        pytest.param("", [(14, 16)], id="no language"),
        pytest.param("SH", [], id="another case"),
    ],
)
async def test_code_blocks_are_chosen_by_language(lang: str | None, lines: list[tuple[int, int]]) -> None:
    found = await markdown(GUIDE).md_code_blocks(lang)

    assert [(block["startLine"], block["endLine"]) for block in found] == lines


async def test_code_body_lies_between_the_fences() -> None:
    guide = markdown(GUIDE)
    first, second = await guide.md_code_blocks()

    assert (first["lang"], second["lang"]) == ("sh", None)
    assert await guide.cat(first["startLine"] + 1, first["endLine"]) == ["# not a heading", "make"]


@pytest.mark.parametrize("depth", [None, 1])
async def test_unclosed_front_matter_swallows_the_structure(depth: int | None) -> None:
    document = markdown("---\n# a\n```\nx\n```")

    assert await document.md_headings(depth) == []
    assert await document.md_sections(depth) == []
    assert await document.md_code_blocks() == []


@pytest.mark.parametrize("reader", [InMemoryReader, PlainReader])
async def test_any_reader_gives_the_same_answers(reader: Any) -> None:
    document = SpooledMarkdownArtifact(reader(GUIDE))

    assert await document.md_frontmatter() == {"title": "Guide", "tags": ["a", "b"]}
    assert len(await document.md_headings()) == 3
    assert await document.md_text(7, 13) == "Install\n# not a heading\nmake"


async def test_carriage_returns_change_no_answer() -> None:
    lf, crlf = markdown(GUIDE), markdown(GUIDE.replace("\n", "\r\n"))

    for method in ("frontmatter", "headings", "sections", "code_blocks", "links", "images", "text", "ast"):
        assert await getattr(crlf, f"md_{method}")() == await getattr(lf, f"md_{method}")()


async def test_byte_order_mark_hides_no_front_matter() -> None:
    assert await markdown(b"\xef\xbb\xbf---\na: 1\n---\n").md_frontmatter() == {"a": 1}


async def test_empty_document_has_empty_answers() -> None:
    document = markdown("")

    assert await document.md_frontmatter() is UNDEFINED
    assert await document.md_headings() == await document.md_sections() == await document.md_code_blocks() == []
    assert await document.md_links() == await document.md_images() == []
    assert await document.md_text() == ""
    assert (await document.md_ast())["children"] == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("title: x\n---", id="no opening fence"),
        pytest.param("\n---\na: 1\n---", id="not on line 0"),
        pytest.param("--- \na: 1\n---", id="more than three dashes"),
        pytest.param("---\na: 1", id="no closing fence"),
        pytest.param("---", id="opening fence alone"),
        pytest.param("---\n---\ntext", id="empty"),
        pytest.param("---\n\n  \n---", id="blank"),
        pytest.param("---\n# comment\n---", id="comments only"),
        pytest.param("---\njust prose\n---", id="no mapping"),
        pytest.param("---\n- a\n---", id="list"),
        pytest.param("---\na: 1\n" + "# x\n" * 198 + "---", id="closed on line 200"),
        pytest.param("---\na: " + "x" * 100_000 + "\nb", id="long and never closed"),
    ],
)
async def test_front_matter_is_missing(text: str) -> None:
    assert await markdown(text).md_frontmatter() is UNDEFINED


async def test_front_matter_may_close_on_line_199() -> None:
    assert await markdown("---\na: 1\n" + "# x\n" * 197 + "---").md_frontmatter() == {"a": 1}


async def test_front_matter_is_json() -> None:
    text = "---\nday: 2024-01-15\nat: 2024-01-15 10:00:00\n1: one\ntrue: yes it is\nnested: {a: [1, 2.5, null]}\n---\n"

    found = await markdown(text).md_frontmatter()

    assert json.loads(to_pretty_json(found)) == {
        "day": "2024-01-15",
        "at": "2024-01-15T10:00:00",
        "1": "one",
        "true": "yes it is",
        "nested": {"a": [1, 2.5, None]},
    }


@pytest.mark.parametrize(
    "yaml",
    [
        pytest.param("a: b: c", id="syntax"),
        pytest.param("a: [1", id="unclosed"),
        pytest.param("a: *nowhere", id="unknown alias"),
        pytest.param("a: &a [*a]", id="contains itself"),
        pytest.param("a: !!python/object/apply:os.system [x]", id="python tag"),
        pytest.param("a: 1\n--- b\nc: 2", id="two documents"),
        pytest.param("a: " + "[" * 5_000, id="deep nesting"),
        pytest.param(
            "a0: &a0 [x, x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)), id="alias bomb"
        ),
        pytest.param("a: " + "x" * MAX_FRONT_MATTER, id="too long"),
        pytest.param("a: " + "x" * (9 << 20), id="line that fits no batch"),
    ],
)
async def test_bad_front_matter_raises(yaml: str) -> None:
    with pytest.raises(YamlParseError):
        await markdown(f"---\n{yaml}\n---\n").md_frontmatter()


async def test_yaml_error_names_the_line_of_the_document() -> None:
    with pytest.raises(YamlParseError, match=r"\(line 3:\d+\)$"):
        await markdown("---\na: 1\nb: c: d\n---\n").md_frontmatter()


async def test_front_matter_is_no_content_of_a_range_from_zero() -> None:
    document = markdown("---\nhome: http://a.b\n---\n# t\n[x](y)\n")

    assert await document.md_links() == [{"text": "x", "url": "y"}]
    assert await document.md_text(0, 4) == "t"
    assert await document.md_text(0, 2) == ""
    assert (await document.md_ast(None, 4))["position"] == {"start": {"line": 3}, "end": {"line": 3}}
    assert await document.md_links(1) == [{"text": "http://a.b", "url": "http://a.b"}, {"text": "x", "url": "y"}]


async def test_unclosed_front_matter_is_content() -> None:
    assert await markdown("---\n[x](y)").md_links() == [{"text": "x", "url": "y"}]


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        pytest.param(None, None, "a\nb\nc", id="all"),
        pytest.param(2, None, "b\nc", id="from"),
        pytest.param(None, 1, "a", id="up to"),
        pytest.param(2, 3, "b", id="one line"),
        pytest.param(0, 0, "", id="nothing"),
        pytest.param(3, 1, "", id="backwards"),
        pytest.param(4, 1_000, "c", id="past the end"),
        pytest.param(1_000, None, "", id="after the end"),
        pytest.param(-5, 1, "a", id="before the start"),
    ],
)
async def test_range_is_half_open_and_clamped(start: int | None, end: int | None, text: str) -> None:
    assert await markdown("a\n\nb\n\nc").md_text(start, end) == text


async def test_tree_counts_lines_of_the_whole_document() -> None:
    root = await markdown(GUIDE).md_ast(7, 12)

    assert root["position"] == {"start": {"line": 7}, "end": {"line": 11}}
    assert [node["position"]["start"]["line"] for node in root["children"]] == [7, 8]


async def test_images_are_found_in_a_range() -> None:
    assert await markdown(GUIDE).md_images() == [{"alt": "a picture", "url": "/p.png"}]
    assert await markdown(GUIDE).md_images(0, 8) == []


async def test_large_document_answers_by_structure(tmp_path: Path) -> None:
    pages = "".join(f"## Page {number}\n" + "words and more words\n" * 200 for number in range(2_500))
    reader = await FileStore(tmp_path).write("large", f"# All\n{pages}```\n# code\n```\n")
    document = SpooledMarkdownArtifact(reader)

    headings = await document.md_headings()

    assert len(headings) == 2_501
    assert headings[-1] == {"depth": 2, "text": "Page 2499", "startLine": 502_300, "endLine": 502_504}
    assert await document.md_code_blocks() == [{"lang": None, "startLine": 502_501, "endLine": 502_503}]
    for method in (document.md_links, document.md_images, document.md_text, document.md_ast):
        with pytest.raises(AnswerTooLarge) as refused:
            await method()
        assert refused.value.help == "pass startLine and endLine, for example those of one section"
    assert (await document.md_text(502_300, 502_302)) == "Page 2499\nwords and more words"


async def test_scan_keeps_memory_flat(tmp_path: Path) -> None:
    line = "x" * (1 << 20) + "\n"
    reader = await FileStore(tmp_path).write("wide", ("# a\n" + line * 20) * 3 + "y" * (9 << 20) + "\n# b")
    document = SpooledMarkdownArtifact(reader)

    tracemalloc.start()
    headings = await document.md_headings()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert [heading["startLine"] for heading in headings] == [0, 21, 42, 64]
    assert peak < 32 << 20


async def test_first_line_of_any_length_is_no_front_matter() -> None:
    document = markdown("-" * (9 << 20) + "\n# a")

    assert await document.md_frontmatter() is UNDEFINED
    assert await document.md_headings() == [{"depth": 1, "text": "a", "startLine": 1, "endLine": 1}]
    with pytest.raises(AnswerTooLarge):
        await document.md_text()


async def test_structure_is_scanned_once() -> None:
    class Counting(InMemoryReader):
        reads = 0

        def read_range(self, offset: int, length: int) -> bytes:
            self.reads += 1
            return super().read_range(offset, length)

    reader = Counting("text\n" * 100_000)
    document = SpooledMarkdownArtifact(reader)

    assert await document.md_headings() == []
    before = reader.reads
    assert await document.md_sections() == await document.md_code_blocks() == []

    assert before > 0
    assert reader.reads == before


async def test_long_lists_are_limited_in_queries() -> None:
    document = markdown("# heading\n```\n```\n" * 100)

    with limit_answer(2_000):
        with pytest.raises(AnswerTooLarge):
            await document.md_headings()
        with pytest.raises(AnswerTooLarge):
            await document.md_code_blocks()
        assert await document.md_code_blocks("py") == []
    assert len(await document.md_headings()) == 100


async def test_tree_of_too_many_nodes_is_refused() -> None:
    document = markdown("- a\n" * (MAX_TREE_NODES // 3 + 1))

    with pytest.raises(AnswerTooLarge, match="nodes"):
        await document.md_ast()
    assert (await document.md_ast(0, 100))["children"]


async def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ArtifactError, match="nested deeper"):
        await markdown(">" * 10_000).md_text()


async def test_forged_tools_are_the_base_seven_and_eight_more() -> None:
    forged = SpooledMarkdownArtifact.forge_tools(Turn([call("c1", markdown(GUIDE))]))

    assert [tool.name for tool in forged.all()][7:] == [
        "artifact_md_frontmatter",
        "artifact_md_headings",
        "artifact_md_code_blocks",
        "artifact_md_sections",
        "artifact_md_links",
        "artifact_md_images",
        "artifact_md_text",
        "artifact_md_ast",
    ]


async def test_forged_tools_accept_markdown_artifacts_only() -> None:
    turn = Turn([call("text", SpooledArtifact(InMemoryReader("x"))), call("md", markdown("# a"))])

    forged = SpooledMarkdownArtifact.forge_tools(turn)

    def ids(name: str) -> list[str]:
        tool = forged.get(name)
        assert tool is not None
        found: list[str] = tool.describe()["input_schema"]["properties"]["callId"]["enum"]
        return found

    assert ids("artifact_cat") == ["text", "md"]
    assert ids("artifact_md_text") == ["md"]


async def test_own_descriptors_only_are_listed() -> None:
    names = {descriptor.name for descriptor in SpooledMarkdownArtifact.tool_methods}

    assert len(names) == 8
    assert all(name.startswith("artifact_md_") for name in names)


@pytest.mark.parametrize(
    ("tool", "args", "answer"),
    [
        pytest.param("frontmatter", {}, {"title": "Guide", "tags": ["a", "b"]}, id="front matter"),
        pytest.param(
            "code_blocks", {"lang": ""}, [{"lang": None, "startLine": 14, "endLine": 16}], id="empty language"
        ),
        pytest.param("links", {}, None, id="links"),
        pytest.param(
            "links", {"endLine": 6}, [{"text": "link", "url": "/one", "title": "First"}], id="links up to a line"
        ),
        pytest.param("links", {"startLine": 6, "endLine": 8}, "(empty list)", id="no links"),
        pytest.param("text", {"startLine": 14}, "plain\nSee www.example.org and a picture.", id="text from a line"),
        pytest.param("headings", {"depth": 3}, "(empty list)", id="no headings"),
    ],
)
async def test_tool_answers_in_text(tool: str, args: dict[str, Any], answer: Any) -> None:
    text = await ask(GUIDE, tool, **args)

    if answer is None:
        answer = await markdown(GUIDE).md_links()
    assert text == (answer if isinstance(answer, str) else to_pretty_json(answer))


async def test_missing_front_matter_reads_undefined() -> None:
    assert await ask("# a", "frontmatter") == "(undefined)"


async def test_tree_tool_answers_json() -> None:
    assert json.loads(await ask("# a", "ast", startLine=0)) == await markdown("# a").md_ast()


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        pytest.param("headings", {"depth": 0}, id="depth 0"),
        pytest.param("sections", {"depth": 7}, id="depth 7"),
        pytest.param("headings", {"depth": "1"}, id="depth as text"),
        pytest.param("code_blocks", {"lang": None}, id="language null"),
        pytest.param("links", {"startLine": -1}, id="negative start"),
        pytest.param("text", {"endLine": 1.5}, id="half a line"),
        pytest.param("ast", {"start_line": 1}, id="unknown argument"),
        pytest.param("frontmatter", {"depth": 1}, id="argument of another tool"),
    ],
)
async def test_bad_arguments_are_refused(tool: str, args: dict[str, Any]) -> None:
    with pytest.raises(InvalidToolArgs):
        await ask(GUIDE, tool, **args)


async def test_failing_query_is_a_downstream_error() -> None:
    with pytest.raises(ToolDownstreamError) as failed:
        await ask("---\na: b: c\n---", "frontmatter")

    assert isinstance(failed.value.cause, YamlParseError)


LINES = st.sampled_from(["", "text", "# one", "# one", "## two", "### three", "```", "````py", "~~~", "---", "a: b"])


@given(st.lists(LINES, max_size=30))
async def test_section_body_never_holds_its_own_heading(lines: Sequence[str]) -> None:
    numbered = [f"{line} {number}" if line.startswith("#") else line for number, line in enumerate(lines)]
    document = markdown("\n".join(numbered))

    sections = await document.md_sections()

    for section in sections:
        body = await document.cat(section["bodyStartLine"], section["bodyEndLine"] + 1)
        assert numbered[section["headingLine"]] not in body
        assert len(body) == section["bodyEndLine"] + 1 - section["bodyStartLine"]
    for outer, inner in pairwise(sections):
        apart = inner["headingLine"] > outer["bodyEndLine"]
        assert apart or (inner["depth"] > outer["depth"] and inner["bodyEndLine"] <= outer["bodyEndLine"])
