"""What the README says about people who decide, done as it says: every command of that section."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from desked import desked
from forked import Forking
from served import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("## People decide")[2].partition("\n## ")[0]
STARTING, ASKING, DECIDING = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
ADDRESS = "http://127.0.0.1:8080"


def shell(text: str, **variables: str) -> "subprocess.Popen[str]":
    command = text.replace(".venv/bin/gateway", f"{sys.executable} -m gateway")
    env = {**os.environ, **variables}
    return subprocess.Popen(
        ["bash", "-ec", command],
        env=env,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(running: "subprocess.Popen[str]") -> str:
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 0, output + errors
    return output


def test_a_second_person_decides_as_the_readme_says(forks: Forking, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    making, serving = STARTING.splitlines()
    token, digest = re.findall(r"^(?:token|sha256) +(\S+)$", said(shell(making)), re.MULTILINE)
    assert serving == "GATEWAY_ENVIRONMENT=desk GATEWAY_APPROVER_SHA256=DIGEST make serve"

    with desked(forks, tmp_path, digest=digest) as gateway:
        asking = ASKING.replace(ADDRESS, gateway.url)
        export, listing, *deciding = DECIDING.replace("=TOKEN", f"={token}").splitlines()
        waiting = shell(asking)
        found = None
        while found is None:
            listed = said(
                shell(f"{export}\n{listing}".replace("TOKEN=TOKEN", f"TOKEN={token}"), GATEWAY_URL=gateway.url)
            )
            found = re.search(r"[\w-]{32,}", listed)
        text = "\n".join([export.replace("=TOKEN", f"={token}"), *deciding]).replace(" ID", f" {found[0]}")
        shown = said(shell(text.replace(" grant ", " grant --yes "), GATEWAY_URL=gateway.url))
        first = json.loads(said(waiting))
        again = json.loads(said(shell(asking)))

    assert "refunds-over-500" in shown
    assert (first["isError"], first["tool"]) == (False, "payment_refund")
    assert "pending" not in again
