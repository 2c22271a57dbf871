"""`gateway serve`, run as an operator runs it."""

import json
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways.commands import run_gateway
from tests.support.gateways.process import start_gateway_process
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"


def get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def run_refused(project: Path, tmp_path: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    ports = ("--port", "0", "--admin-port", "0")
    return run_gateway("serve", "--configs", str(project), *ports, *options, cwd=tmp_path)


def test_start_prints_where_and_what_and_a_signal_ends_it(tmp_path: Path) -> None:
    with start_gateway_process(SMALL, tmp_path) as gateway:
        assert "small, revision " in gateway.output
        assert f"MCP    {gateway.url}/desk/mcp   desk: 2 tools in the catalogue" in gateway.output
        assert get(f"{gateway.admin_url}/livez") == (200, {"live": True})
        assert get(f"{gateway.url}/readyz")[1]["ready"] is True
        assert [each["name"] for each in get(f"{gateway.url}/v1/catalogues")[1]["catalogues"]] == ["desk"]

        assert gateway.stop(signal.SIGTERM) == 0


def test_broken_configuration_is_shown_as_check_shows_it_and_nothing_starts(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "configs").mkdir(parents=True)
    (project / "configs" / "a.yaml").write_text("kind: Tol\n", encoding="utf-8")

    answer = run_refused(project, tmp_path)

    assert answer.returncode == 1
    assert "unknown-kind: there is no kind 'Tol'" in answer.stderr
    assert list(tmp_path.iterdir()) == [project]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_identity_none_does_not_listen_to_the_network(tmp_path: Path, workers: str) -> None:
    answer = run_refused(SMALL, tmp_path, "--host", "0.0.0.0", "--workers", workers)

    assert answer.returncode == 1
    assert "identity of type none is for loopback only" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("option", ["--port", "--admin-port"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_taken_port_is_reported_with_how_to_choose_another(tmp_path: Path, option: str, workers: str) -> None:
    with start_gateway_process(SMALL, tmp_path / "one") as gateway:
        port = gateway.url.rpartition(":")[2]
        answer = run_refused(SMALL, tmp_path, option, port, "--workers", workers)

    assert answer.returncode == 1
    assert f"cannot listen on 127.0.0.1, port {port}: " in answer.stderr
    assert answer.stderr.rstrip().endswith(
        f"or choose another address with {option.replace('port', 'host')} and {option}"
    )


@pytest.mark.parametrize("option", ["--port=99999", "--port=x", "--nothing"])
def test_wrong_use_is_reported(tmp_path: Path, option: str) -> None:
    answer = run_refused(SMALL, tmp_path, option)

    assert answer.returncode in (1, 2)
    assert answer.stderr
    assert "Traceback" not in answer.stderr


def test_unknown_paths_answer_what_is_where(tmp_path: Path) -> None:
    with start_gateway_process(SMALL, tmp_path) as gateway:
        status, problem = get(f"{gateway.url}/")

        assert (status, problem["detail"]) == (404, "nothing is served at this path")
        assert "/v1" in problem["help"]
        assert get(f"{gateway.admin_url}/nothing")[0] == 404
