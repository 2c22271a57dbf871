"""The page in a real Chromium: it is readable and accessible everywhere, and hostile text is shown and does nothing."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from gateway.model import split_unseen
from gateway.review.report.page import render_page
from gateway.review.report.report_data import ReportData
from tests.review.report.report_projects import example_report
from tests.review.report.test_page import HOSTILE, hostile_report
from tests.support.browser import open_browser, open_page
from tests.support.paths import ROOT

CORPUS: Final = ROOT.parent / "shared" / "data" / "envelope_corpus.jsonl"
WIDTHS: Final = (360, 768, 1440)
HIDDEN: Final = r"/[\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}\u115f\u1160\u2800\u3164\ufe00-\ufe0f\uffa0]/u"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("report"), example_report())


def write_page(folder: Path, report: ReportData) -> Path:
    file = folder / "review.html"
    file.write_text(render_page(report), encoding="utf-8")
    return file


def with_definitions(texts: list[str]) -> ReportData:
    """Return a report in which an upstream defines one tool for each text, with it as name and description."""
    report = example_report()
    first = report.sections.definitions.definitions[0]
    found = tuple(replace(first, name=text[:80], title=None, description=text) for text in texts)
    definitions = replace(report.sections.definitions, definitions=found)
    return replace(report, sections=replace(report.sections, definitions=definitions))


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (360, "dark")])
def test_page_has_no_violation_of_accessibility(browser: Browser, page_file: Path, width: int, scheme: str) -> None:
    # The page's own policy would refuse axe, which is a script.
    options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "bypass_csp": True}
    with open_page(browser, page_file, **options) as opened:
        found = Axe().run(opened.page)

    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found.response["violations"]] == []
    assert found.response["passes"], "nothing was looked at"


@pytest.mark.parametrize("width", WIDTHS)
def test_page_needs_no_sideways_scrolling(browser: Browser, page_file: Path, width: int) -> None:
    with open_page(browser, page_file, viewport={"width": width, "height": 900}) as opened:
        needed = opened.page.evaluate("document.documentElement.scrollWidth")

    assert needed == width


def test_page_asks_for_nothing_and_says_nothing(browser: Browser, page_file: Path) -> None:
    with open_page(browser, page_file) as opened:
        assert opened.page.evaluate("document.scripts.length") == 0
        assert opened.page.evaluate("getComputedStyle(document.querySelector('.chip')).display") == "inline-flex"

        assert opened.deeds == []


def test_page_prints_the_trust_matrix_on_one_landscape_sheet(browser: Browser, page_file: Path) -> None:
    with open_page(browser, page_file, color_scheme="dark") as opened:
        printed = opened.page.pdf(prefer_css_page_size=True)

    boxes = [
        (float(width), float(height)) for width, height in re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed)
    ]
    assert len(boxes) > 10
    assert [width > height for width, height in boxes].count(True) == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_anywhere_does_nothing_even_without_the_policy(
    browser: Browser, tmp_path: Path, text: str
) -> None:
    file = write_page(tmp_path, hostile_report(text))

    with open_page(browser, file, bypass_csp=True) as opened:
        shown = opened.page.evaluate("document.body.textContent").replace("\n", "")
        assert not opened.page.evaluate(f"{HIDDEN}.test({json.dumps(shown)})")
        assert opened.page.evaluate("document.querySelectorAll('script, img, iframe').length") == 0

        assert opened.deeds == []


@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus of hostile texts is not here")
@pytest.mark.parametrize("bypass", [False, True], ids=["with-policy", "without-policy"])
def test_every_text_of_the_corpus_is_shown_whole_and_does_nothing(
    browser: Browser, tmp_path: Path, bypass: bool
) -> None:
    texts = [json.loads(line)["text"][:2000] for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    file = write_page(tmp_path, with_definitions(texts))

    with open_page(browser, file, bypass_csp=bypass) as opened:
        shown = opened.page.evaluate("[...document.querySelectorAll('#definitions .ut pre')].map(e => e.textContent)")

        assert shown == ["\n".join(map(in_plain_sight, text.split("\n"))) for text in texts]
        assert opened.page.evaluate("document.querySelectorAll('#definitions .ut pre > :not(.inv)').length") == 0
        assert opened.deeds == []


def in_plain_sight(line: str) -> str:
    return "".join(piece.text for piece in split_unseen(line))
