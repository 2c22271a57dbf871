"""The five minutes of the README, taken with a real gateway on the example project."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import ROOT, Served, served

README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(ROOT, tmp_path_factory.mktemp("data")) as running:
        yield running


def block(language: str, word: str) -> str:
    """The one example of a language that has a word in it."""
    (found,) = [each for each in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if word in each]
    return str(found)


def run(command: list[str]) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    answer = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PATH": path}, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_curl_line_gets_a_governed_answer(gateway: Served) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")

    answer = json.loads(run(["bash", "-c", block("sh", "price_quote/call").replace(ADDRESS, gateway.url)]))

    assert answer["isError"] is False
    assert answer["tool"] == "price_quote"
    assert "trusted_content_" in answer["rendered"]


def test_python_client_lists_and_calls(gateway: Served) -> None:
    output = run([sys.executable, "-c", block("python", ADDRESS).replace(ADDRESS, gateway.url)])

    assert "price_quote" in output.splitlines()[0]
    assert "DESK-160" in output


def test_explanation_names_the_rule_that_holds() -> None:
    command = block("sh", "explain call").replace(".venv/bin/gateway", f"{sys.executable} -m gateway")

    output = run(["bash", "-c", command])

    assert "hold" in output
    assert "refunds-over-500" in output
