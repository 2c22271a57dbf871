"""The README's five-minute walk with a real gateway on the example project; then a new project."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.support.gateways.process import GatewayProcess, start_gateway_process
from tests.support.paths import ROOT
from tests.support.terminal import block, run, run_typed_line

ADDRESS = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with start_gateway_process(ROOT, tmp_path_factory.mktemp("data")) as running:
        yield running


def readme(language: str, word: str) -> str:
    return block("README.md", language, word)


def test_curl_line_gets_a_governed_answer(gateway: GatewayProcess) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")

    answer = json.loads(run_typed_line(readme("sh", "price_quote/call").replace(ADDRESS, gateway.url)))

    assert answer["isError"] is False
    assert answer["tool"] == "price_quote"
    assert "trusted_content_" in answer["rendered"]


def test_python_client_lists_and_calls(gateway: GatewayProcess) -> None:
    output = run([sys.executable, "-c", readme("python", ADDRESS).replace(ADDRESS, gateway.url)])

    assert "price_quote" in output.splitlines()[0]
    assert "artifact_grep" in output.splitlines()[0]
    assert "DESK-160" in output


def test_explanation_names_the_rule_that_holds() -> None:
    output = run_typed_line(readme("sh", "explain call"))

    assert "hold" in output
    assert "refunds-over-500" in output


def test_project_of_ones_own_is_checked_served_beside_the_example_and_planned(tmp_path: Path) -> None:
    clone, demo = tmp_path / "clone", tmp_path / "demo"
    clone.mkdir()
    *making, serving = readme("sh", "gateway init").splitlines()
    assert serving.split()[:6] == ["gateway", "serve", "--port", "8180", "--admin-port", "8181"]

    records = {"GATEWAY_DATA_DIR": str(demo)}
    run_typed_line("\n".join(making), folder=clone)
    with start_gateway_process(demo, demo) as running:
        quote(running.url)
        calls = json.loads(run_typed_line("gateway calls list --output json", folder=demo, env=records))
    run_typed_line(readme("sh", "git init"), folder=demo)
    unchanged = run_typed_line(readme("sh", "plan --against"), folder=demo, env=records)
    configs = demo / "configs" / "gateway.yaml"
    configs.write_text(configs.read_text(encoding="utf-8").replace("flags: [writes]", "flags: [writes, egress]"))
    changed = run_typed_line(readme("sh", "plan --against"), folder=demo, code=2)

    assert [call["tool"] for call in calls] == ["price_quote"]
    assert "folder_create" not in unchanged
    assert "folder_create" in changed
    assert "egress" in changed


def quote(url: str) -> None:
    asked = Request(
        f"{url}/v1/catalogues/starter/tools/price_quote/call",
        data=b'{"arguments": {"sku": "LAMP-9", "quantity": 1}}',
        headers={"content-type": "application/json"},
    )
    with urlopen(asked, timeout=60) as answer:
        assert answer.status == 200
