"""`make serve`: the ports that the README tells, an error where one of them is taken, and an end that is clean."""

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
from served import ROOT, STARTS_WITHIN
from terminals import active, block, typed

from gateway.identity.api_tokens import new_token

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

DEFAULT_ADMIN = "http://127.0.0.1:8081"
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKE = ["make", "--old-file=.venv/.ready", f"BIN={Path(sys.executable).parent}", "serve"]
"""With the environment that runs the tests, which is not made anew."""


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
            env=active(GATEWAY_DATA_DIR=str(tmp_path)),
            stdin=subprocess.DEVNULL,
            timeout=120,
        )

    assert answer.returncode != 0
    assert f"port {port}" in answer.stderr
    assert "try: " not in answer.stdout


def test_ports_are_those_that_are_given_and_tools_find_their_service(tmp_path: Path) -> None:
    with made(tmp_path) as gateway:
        refunded = refund(gateway.url)

    assert gateway.first_line == f"helpdesk at {gateway.helpdesk_url}\n"
    assert f"{gateway.admin_url}/readyz" in gateway.output
    assert refunded["isError"] is False, refunded


def test_another_terminal_sees_the_same_revision_once_it_has_the_variables(tmp_path: Path) -> None:
    token, digest = new_token()
    digests = {"GATEWAY_OPERATOR_SHA256": digest, "GATEWAY_APPROVER_SHA256": new_token()[1]}
    with made(tmp_path, GATEWAY_ENVIRONMENT="operator", **digests) as gateway:
        exporting, comparing = (
            block("docs/reload.md", "sh", "drift --served").replace(DEFAULT_ADMIN, gateway.admin_url).splitlines()
        )
        # What this test has besides: ports that were free, and a folder of its own.
        given = {"GATEWAY_TOKEN": token, "HELPDESK_URL": gateway.helpdesk_url, "GATEWAY_DATA_DIR": str(tmp_path)}
        same = typed(f"{exporting}\n{comparing}", env=given)
        other = typed(comparing, code=2, env=given)

    assert same.endswith(" is served\n")
    assert "this project is" in other


@dataclass
class Made:
    """What `make serve` has started, and what it had said when it was up."""

    url: str
    admin_url: str
    helpdesk_url: str
    first_line: str
    output: str


@contextmanager
def made(data: Path, **variables: str) -> Iterator[Made]:
    """`make serve` as the README has it for other ports."""
    own, admin, helpdesk = free_ports(3)
    line = re.search(r"`(make serve HELPDESK_PORT=9091 SERVE_ARGS=.*?)`", README)
    assert line is not None
    given = line[1].replace("9091", str(helpdesk)).replace("9080", str(own)).replace("9081", str(admin))
    process = subprocess.Popen(
        [*MAKE, *shlex.split(given)[2:]],
        cwd=ROOT,
        env=active(GATEWAY_DATA_DIR=str(data), **variables),
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
        yield Made(url, admin_url, helpdesk_url, first, output)
    finally:
        too_late.cancel()
        process.terminate()
        process.communicate(timeout=60)


def lines_until_up(output: Iterable[str]) -> tuple[str, str]:
    """The first line, and all until the gateway is up."""
    said: list[str] = []
    for line in output:
        said.append(line)
        if line.startswith("try: "):
            break
    return (said or [""])[0], "".join(said)


def refund(url: str) -> dict[str, object]:
    asked = Request(
        f"{url}/v1/catalogues/finance/tools/payment_refund/call",
        data=b'{"arguments": {"order": "A1", "amount": 9, "currency": "EUR"}}',
        headers={"content-type": "application/json"},
    )
    with urlopen(asked, timeout=60) as answer:
        found: dict[str, object] = json.load(answer)
        return found
