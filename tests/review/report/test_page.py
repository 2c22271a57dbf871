"""The page is one self-contained file in which no text of others can do anything."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Final

import pytest

from gateway.registries import DefinitionChange, Position
from gateway.review.report.page import LinkTemplate, render_page, show_attribute, show_lines, show_text
from gateway.review.report.report_data import ReportData, build_report
from gateway.review.report.section_titles import TITLES
from tests.review.report.report_projects import example_report, report_input
from tests.support.paths import ROOT

HOSTILE: Final = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><script>alert(1)</script>",
    "{{ 7 * 7 }}{% include 'report/cover.html' %}",
    "javascript:alert(1)",
    "a\u202etxt.exe",
    "pay\u200bpal",
    "\x1b[2J\x07",
    "a\u0000b",
    "]]><![CDATA[",
    "&lt;b&gt;",
)


class _Page(HTMLParser):
    """Collects the tags and attributes of a page, and what follows each tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id" and value]


def hostile_report(text: str) -> ReportData:
    """Return the report of the example with a hostile text wherever others can write one."""
    source = report_input(ROOT)
    drift = [DefinitionChange(text, text, text, "description-changed", "high", text, text)]
    report = build_report(replace(source, drift=drift, commit=text, environment=text))
    definitions = report.sections.definitions
    hostile = [
        replace(each, name=text, title=text, description=text, upstream=text) for each in definitions.definitions
    ]
    catalogues = [
        replace(
            each,
            title=text,
            instructions=text,
            tools=tuple(replace(tool, name=text, title=text, description=text) for tool in each.tools),
        )
        for each in report.sections.catalogues.catalogues
    ]
    hazards = [replace(each, name=text, catalogue=text) for each in report.sections.hazards.tools]
    tiers = [replace(each, name=text, description=text) for each in report.sections.trust.tiers]
    rows = [
        replace(row, flag=text, cells=tuple(replace(cell, tier=text) for cell in row.cells))
        for row in report.sections.trust.rows
    ]
    findings = [replace(each, title=text, words=text) for each in report.summary.findings]
    sections = replace(
        report.sections,
        definitions=replace(definitions, definitions=tuple(hostile)),
        catalogues=replace(report.sections.catalogues, catalogues=tuple(catalogues)),
        hazards=replace(report.sections.hazards, tools=tuple(hazards)),
        trust=replace(report.sections.trust, tiers=tuple(tiers), rows=tuple(rows)),
    )
    return replace(report, summary=replace(report.summary, findings=tuple(findings)), sections=sections)


def test_page_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    page = _Page(render_page(example_report()))

    assert not {"script", "link", "iframe", "object", "embed", "img", "form", "base"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on") or name == "style"]
    addresses = [value or "" for _, name, value in page.attributes if name in ("href", "src", "action", "srcset")]
    assert [each for each in addresses if not each.startswith("#")] == []


def test_page_has_every_section_once_with_a_heading() -> None:
    page = _Page(render_page(example_report()))

    assert len(page.ids) == len(set(page.ids))
    assert [each for each in page.ids if each in TITLES] == list(TITLES)
    assert {f"h-{each}" for each in TITLES} <= set(page.ids)


def test_content_policy_allows_the_one_style_sheet_only() -> None:
    text = render_page(example_report())

    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert re.fullmatch(
        r"default-src &#39;none&#39;; style-src &#39;sha256-[\w+/=]+&#39;; "
        r"base-uri &#39;none&#39;; form-action &#39;none&#39;",
        policy,
    )
    assert text.count("<style>") == 1


def test_equal_reports_give_equal_pages() -> None:
    assert render_page(example_report()) == render_page(build_report(report_input(ROOT)))


def test_links_lead_to_file_and_line_at_the_commit() -> None:
    template = LinkTemplate("https://git.example/blob/{rev}/{file}#L{line}", "main branch")

    assert (
        template.link(Position("configs/a b.yaml", 7)) == "https://git.example/blob/main%20branch/configs/a%20b.yaml#L7"
    )
    text = render_page(example_report(), links=LinkTemplate("https://git.example/{file}#L{line}"))
    assert '<a class="src" href="https://git.example/configs/gates.yaml#L' in text


def test_name_of_a_file_cannot_leave_its_link() -> None:
    link = LinkTemplate("https://git.example/{file}").link(Position('x"><b>\u202e', 1))

    assert link == "https://git.example/x%22%3E%3Cb%3E%E2%80%AE"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_adds_no_tag_and_no_attribute(text: str) -> None:
    harmless = _Page(render_page(hostile_report("harmless")))
    hostile = _Page(render_page(hostile_report(text)))

    tags = [each for each in hostile.tags if each != "span"]
    assert tags == [each for each in harmless.tags if each != "span"]
    names = [(tag, name) for tag, name, _ in hostile.attributes if tag != "span"]
    assert names == [(tag, name) for tag, name, _ in harmless.attributes if tag != "span"]


@pytest.mark.parametrize("text", HOSTILE)
def test_page_has_no_character_that_a_screen_does_not_draw(text: str) -> None:
    page = render_page(hostile_report(text))

    assert [each for each in page.replace("\n", "") if not each.isprintable()] == []


def test_hidden_characters_are_shown_by_their_numbers() -> None:
    assert show_text("a\u202eb") == 'a<span class="inv">U+202E</span>b'
    assert show_text("<b>\n") == '&lt;b&gt;<span class="inv">U+000A</span>'
    assert show_lines("a\nb\r") == 'a\nb<span class="inv">U+000D</span>'
    assert show_attribute('"\u200b') == "&#34;&lt;U+200B&gt;"
