"""docs/artifacts.md, done as it says: every command and client of the page, and what each prints."""

import re
import shutil
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest
from served import ROOT, Served, served
from terminals import block, blocks, run, typed

PAGE = "docs/artifacts.md"
ADDRESS = "http://127.0.0.1:8080"
RANDOM = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{32}\b|(?<=content_)[0-9a-f]{32}")
LEFT_OUT = "…"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(ROOT, tmp_path_factory.mktemp("data")) as running:
        yield running


def plain(text: str) -> list[str]:
    """Lines without what is another one each time."""
    return RANDOM.sub("ID", text.replace("\r", "")).splitlines()


def assert_shown(printed: str, told: str) -> None:
    """Every line of the page in its order; `…` stands for lines that it leaves out."""
    lines = iter(plain(printed))
    is_exact = True
    for line in plain(told):
        if line == LEFT_OUT:
            is_exact = False
            continue
        found = next(lines, None) if is_exact else next((each for each in lines if each == line), None)
        assert found == line
        is_exact = True
    assert not is_exact or next(lines, None) is None


def test_commands_print_what_the_page_says(gateway: Served) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    steps = blocks(PAGE, "sh")
    told = blocks(PAGE, "text")[: len(steps)]
    typed_in = "\necho END-OF-STEP\n".join(steps).replace(ADDRESS, gateway.url)

    printed = typed(typed_in).split("END-OF-STEP\n")

    for shown, expected in zip_longest(printed, told, fillvalue=""):
        assert_shown(shown, expected)


def test_client_prints_what_the_page_says(gateway: Served) -> None:
    printed = run([sys.executable, "-c", block(PAGE, "python", ADDRESS).replace(ADDRESS, gateway.url)])

    assert printed == block(PAGE, "text", "resource_link")


def test_class_of_the_page_passes_the_check_and_has_the_queries_it_names(tmp_path: Path) -> None:
    (document,) = blocks(PAGE, "yaml")
    typed("gateway init shop", folder=tmp_path)
    configs = tmp_path / "shop" / "configs"
    starter = (configs / "gateway.yaml").read_text(encoding="utf-8")
    (configs / "gateway.yaml").write_text(starter.replace("{artifact: json}", "{artifact: order}"), encoding="utf-8")
    (configs / "order.yaml").write_text(document, encoding="utf-8")

    assert "no problems" in typed("gateway check shop --strict", folder=tmp_path)
