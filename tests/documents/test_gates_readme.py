"""The commands in the README's section on approvals work as written."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateways.example_project import start_example
from tests.support.gateways.forkserver import ForkServer
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("## People decide")[2].partition("\n## ")[0]
STARTING, ASKING, DECIDING = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
ADDRESS = "http://127.0.0.1:8080"


def shell(text: str, **variables: str) -> "subprocess.Popen[str]":
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, **variables}
    return subprocess.Popen(
        ["bash", "-ec", text],
        env=env,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_output(running: "subprocess.Popen[str]") -> str:
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 0, output + errors
    return output


def test_a_second_person_decides_as_in_the_readme(forks: ForkServer, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    making, serving = STARTING.splitlines()
    token, digest = re.findall(r"^(?:token|sha256) +(\S+)$", wait_for_output(shell(making)), re.MULTILINE)
    assert serving == "GATEWAY_ENVIRONMENT=desk GATEWAY_APPROVER_SHA256=DIGEST make serve"

    with start_example(forks, tmp_path, digest=digest) as gateway:
        asking = ASKING.replace(ADDRESS, gateway.url)
        export, listing, *deciding = DECIDING.replace("=TOKEN", f"={token}").splitlines()
        waiting = shell(asking)
        first_id = waiting_id(f"{export}\n{listing}", gateway.url, besides="")
        text = "\n".join([export, *deciding]).replace(" ID", f" {first_id}")
        shown = wait_for_output(shell(text.replace(" grant ", " grant --yes "), GATEWAY_URL=gateway.url))
        first = json.loads(wait_for_output(waiting))
        again = shell(asking)
        asked_anew = waiting_id(f"{export}\n{listing}", gateway.url, besides=first_id)
        again.kill()
        again.communicate()

    assert "refunds-over-500" in shown
    assert (first["isError"], first["tool"]) == (False, "payment_refund")
    assert asked_anew != first_id


def waiting_id(listing: str, url: str, *, besides: str) -> str:
    """Wait for a pending approval other than `besides` and return its id."""
    while True:
        found = re.findall(r"[\w-]{32,}", wait_for_output(shell(listing, GATEWAY_URL=url)))
        if new := [each for each in found if each != besides]:
            return str(new[0])
