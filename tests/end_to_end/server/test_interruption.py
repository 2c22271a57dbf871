"""A signal during startup stops the gateway cleanly, and nothing is left behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways.projects import Document, base_documents, catalogue, document, http_tool, write_project

POLICY = "p, role:staff, *, tool:*, invoke, internal, allow\n"
SIGNALS = [pytest.param(signal.SIGTERM, id="term"), pytest.param(signal.SIGINT, id="int")]
WORKERS = [pytest.param("1", id="alone"), pytest.param("2", id="workers")]
STUCK = "import os\nos.write(1, b'here\\n')\nos.read(0, 1)\n"
"""A module that reports its import on stdout and blocks."""


def project(folder: Path, *, keys_url: str = "http://127.0.0.1:1/", **tool: Any) -> Path:
    spec = {"type": "jwt", "issuer": "https://login.example.com", "audience": ["gateway"], "algorithms": ["RS256"]}
    provider: Document = document("IdentityProvider", "corp", {**spec, "keys": {"fromUrl": keys_url}})
    documents = [
        *base_documents(["corp"]),
        provider,
        http_tool("echo", 1, **tool),
        catalogue("desk", ["role:staff"], ["*"]),
    ]
    return write_project(folder / "p", documents, policy=POLICY)


@contextmanager
def start_process(folder: Path, configs: Path, *, workers: str = "1", **env: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a gateway with its own folder for temporary files, and a pipe on which the module blocks."""
    temporary = folder / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "gateway", "serve", "--configs", str(configs), "--workers", workers]
    process = subprocess.Popen(
        [*command, "--port", "0", "--admin-port", "0"],
        env={**os.environ, "GATEWAY_DATA_DIR": str(folder / "data"), "TMPDIR": str(temporary), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def stop_process(process: "subprocess.Popen[str]", number: int, folder: Path) -> None:
    """Send the signal; the process ends as a running gateway does, with all its children."""
    below = descendants(process.pid)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)

    assert (process.returncode, errors) == (0, "note: stopped\n"), output
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
    assert list((folder / "tmp").iterdir()) == []


def descendants(pid: int) -> list[int]:
    try:
        children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*children, *(each for child in children for each in descendants(child))]


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("module", ["typer", "uvicorn"])
def test_stop_while_modules_are_imported_is_obeyed(module: str, number: int, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / f"{module}.py").write_text(STUCK, encoding="utf-8")

    with start_process(tmp_path, project(tmp_path), PYTHONPATH=str(tmp_path / "first")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"

        stop_process(process, number, tmp_path)

    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_stop_while_the_project_is_read_is_obeyed(number: int, tmp_path: Path) -> None:
    """The module swallows the interruption of its import."""
    stubborn = f"try:\n{''.join(f'    {line}' for line in STUCK.splitlines(True))}except BaseException:\n    pass\n"
    (tmp_path / "stuck_tools.py").write_text(stubborn, encoding="utf-8")
    backend = {"type": "python", "entrypoint": "stuck_tools:run"}
    env = {"PYTHONPATH": str(tmp_path), "GATEWAY_PYTHON_PACKAGES": "stuck_tools"}

    with start_process(tmp_path, project(tmp_path, backend=backend), **env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"

        stop_process(process, number, tmp_path)

    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("number", SIGNALS)
def test_stop_while_something_is_open_closes_it(number: int, workers: str, tmp_path: Path) -> None:
    """The store is open when the gateway requests the issuer's keys, and this issuer never answers."""
    with socket.create_server(("127.0.0.1", 0)) as issuer:
        url = f"http://127.0.0.1:{issuer.getsockname()[1]}/keys"
        with start_process(tmp_path, project(tmp_path, keys_url=url), workers=workers) as process:
            issuer.settimeout(60)
            asked, _ = issuer.accept()
            with asked:
                stop_process(process, number, tmp_path)

    left = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert [path.name for path in left] == ["gateway.db"]
