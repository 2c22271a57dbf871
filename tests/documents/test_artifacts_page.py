"""The commands and clients in docs/artifacts.md work and print what the page shows."""

import re
import shutil
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.support.gateways.process import GatewayProcess, start_gateway_process
from tests.support.paths import ROOT
from tests.support.terminal import block, blocks, run, run_typed_line

PAGE = "docs/artifacts.md"
ADDRESS = "http://127.0.0.1:8080"
RANDOM = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{32}\b|(?<=content_)[0-9a-f]{32}")
LEFT_OUT = "…"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with start_gateway_process(ROOT, tmp_path_factory.mktemp("data")) as running:
        yield running


def plain(text: str) -> list[str]:
    """Return the lines with random ids replaced."""
    return RANDOM.sub("ID", text.replace("\r", "")).splitlines()


def assert_shown(printed: str, page: str) -> None:
    """The output contains every line of the page in order; `…` stands for omitted lines."""
    lines = iter(plain(printed))
    is_exact = True
    for line in plain(page):
        if line == LEFT_OUT:
            is_exact = False
            continue
        found = next(lines, None) if is_exact else next((each for each in lines if each == line), None)
        assert found == line
        is_exact = True
    assert not is_exact or next(lines, None) is None


def test_commands_print_what_the_page_shows(gateway: GatewayProcess) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    steps = blocks(PAGE, "sh")
    examples = blocks(PAGE, "text")[: len(steps)]
    typed_in = "\necho END-OF-STEP\n".join(steps).replace(ADDRESS, gateway.url)

    printed = run_typed_line(typed_in).split("END-OF-STEP\n")

    for shown, expected in zip_longest(printed, examples, fillvalue=""):
        assert_shown(shown, expected)


def test_client_prints_what_the_page_shows(gateway: GatewayProcess) -> None:
    printed = run([sys.executable, "-c", block(PAGE, "python", ADDRESS).replace(ADDRESS, gateway.url)])

    assert printed == block(PAGE, "text", "resource_link")


def test_class_of_the_page_passes_the_check_and_has_the_queries_it_names(tmp_path: Path) -> None:
    (document,) = blocks(PAGE, "yaml")
    run_typed_line("gateway init shop", folder=tmp_path)
    configs = tmp_path / "shop" / "configs"
    starter = (configs / "gateway.yaml").read_text(encoding="utf-8")
    (configs / "gateway.yaml").write_text(starter.replace("{artifact: json}", "{artifact: order}"), encoding="utf-8")
    (configs / "order.yaml").write_text(document, encoding="utf-8")

    assert "no problems" in run_typed_line("gateway check shop --strict", folder=tmp_path)
