"""`make serve`: it uses the ports in the README, fails if one is taken, and shuts down cleanly."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from gateway.identity.credentials import new_api_token
from tests.support.gateways.process import STARTS_WITHIN
from tests.support.paths import ROOT
from tests.support.terminal import activate_environment, block, run_typed_line

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

DEFAULT_ADMIN = "http://127.0.0.1:8081"
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKE = ["make", "--old-file=.venv/.ready", f"BIN={Path(sys.executable).parent}", "serve"]
"""Uses the environment that runs the tests and does not rebuild it."""


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@pytest.mark.parametrize("taken", ["helpdesk", "gateway"])
def test_port_that_is_taken_is_an_error(taken: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        helpdesk, own = (port, 0) if taken == "helpdesk" else (0, port)
        answer = subprocess.run(
            [*MAKE, f"HELPDESK_PORT={helpdesk}", f"SERVE_ARGS=--port {own} --admin-port 0"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=activate_environment(GATEWAY_DATA_DIR=str(tmp_path)),
            stdin=subprocess.DEVNULL,
            timeout=120,
        )

    assert answer.returncode != 0
    assert f"port {port}" in answer.stderr
    assert "try: " not in answer.stdout


def test_ports_are_those_that_are_given_and_tools_find_their_service(tmp_path: Path) -> None:
    with run_make_serve(tmp_path) as gateway:
        refunded = refund(gateway.url)

    assert gateway.first_line == f"helpdesk at {gateway.helpdesk_url}\n"
    assert f"{gateway.admin_url}/readyz" in gateway.output
    assert refunded["isError"] is False, refunded


def test_another_terminal_sees_the_same_revision_once_it_has_the_variables(tmp_path: Path) -> None:
    token, digest = new_api_token()
    digests = {"GATEWAY_OPERATOR_SHA256": digest, "GATEWAY_APPROVER_SHA256": new_api_token()[1]}
    with run_make_serve(tmp_path, GATEWAY_ENVIRONMENT="operator", **digests) as gateway:
        exporting, comparing = (
            block("docs/reload.md", "sh", "drift --served").replace(DEFAULT_ADMIN, gateway.admin_url).splitlines()
        )
        # Settings of this test: free ports and a temporary folder.
        given = {"GATEWAY_TOKEN": token, "HELPDESK_URL": gateway.helpdesk_url, "GATEWAY_DATA_DIR": str(tmp_path)}
        same = run_typed_line(f"{exporting}\n{comparing}", env=given)
        other = run_typed_line(comparing, code=2, env=given)

    assert same.endswith(" is served\n")
    assert "this project is" in other


@dataclass
class MakeServe:
    """What `make serve` started, and its output until it was up."""

    url: str
    admin_url: str
    helpdesk_url: str
    first_line: str
    output: str


@contextmanager
def run_make_serve(data: Path, **variables: str) -> Iterator[MakeServe]:
    """Run `make serve` with other ports, as in the README."""
    own, admin, helpdesk = free_ports(3)
    line = re.search(r"`(make serve HELPDESK_PORT=9091 SERVE_ARGS=.*?)`", README)
    assert line is not None
    given = line[1].replace("9091", str(helpdesk)).replace("9080", str(own)).replace("9081", str(admin))
    process = subprocess.Popen(
        [*MAKE, *shlex.split(given)[2:]],
        cwd=ROOT,
        env=activate_environment(GATEWAY_DATA_DIR=str(data), **variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    too_late = threading.Timer(STARTS_WITHIN, process.terminate)
    too_late.start()
    try:
        assert process.stdout is not None
        first, output = lines_until_up(process.stdout)
        too_late.cancel()
        url, admin_url, helpdesk_url = (f"http://127.0.0.1:{port}" for port in (own, admin, helpdesk))
        yield MakeServe(url, admin_url, helpdesk_url, first, output)
    finally:
        too_late.cancel()
        process.terminate()
        process.communicate(timeout=60)


def lines_until_up(output: Iterable[str]) -> tuple[str, str]:
    """Return the first line, and all lines until the gateway is up."""
    lines: list[str] = []
    for line in output:
        lines.append(line)
        if line.startswith("try: "):
            break
    return (lines or [""])[0], "".join(lines)


def refund(url: str) -> dict[str, object]:
    asked = Request(
        f"{url}/v1/catalogues/finance/tools/payment_refund/call",
        data=b'{"arguments": {"order": "A1", "amount": 9, "currency": "EUR"}}',
        headers={"content-type": "application/json"},
    )
    with urlopen(asked, timeout=60) as answer:
        found: dict[str, object] = json.load(answer)
        return found
