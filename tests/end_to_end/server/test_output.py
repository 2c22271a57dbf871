"""The output of `gateway serve`: bounded, clear about what it counts, and never a reason to stop."""

import fcntl
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.gateways.commands import start_command
from tests.support.gateways.process import start_gateway_process
from tests.support.gateways.projects import (
    Document,
    Person,
    base_documents,
    catalogue,
    document,
    environ_of,
    http_tool,
    tokens_of,
    write_project,
)

POLICY = "p, role:staff, *, tool:*, invoke, internal, allow\n"
WORKERS = [pytest.param((), id="alone"), pytest.param(("--workers", "2"), id="workers")]


def anonymous_provider() -> Document:
    return document("IdentityProvider", "local", {"type": "none", "subject": "user:you", "roles": ["role:staff"]})


def project(folder: Path, *, warnings: int = 0) -> Path:
    """A project with one published tool, and one unpublished tool for each warning."""
    unpublished = [http_tool(f"idle_{number:04}", 1) for number in range(warnings)]
    documents = [*base_documents(["local"]), anonymous_provider(), http_tool("echo", 1), *unpublished]
    return write_project(folder / "p", [*documents, catalogue("desk", ["role:staff"], ["echo"])], policy=POLICY)


def test_counts_are_labelled_as_those_of_the_catalogue(tmp_path: Path) -> None:
    with start_gateway_process(project(tmp_path), tmp_path / "data") as gateway:
        assert f"MCP    {gateway.url}/desk/mcp   desk: 1 tool in the catalogue\n" in gateway.output
        assert "a caller sees the tools of a catalogue that the policy allows\n" in gateway.output


def test_addresses_and_attempts_are_those_that_are_answered(tmp_path: Path) -> None:
    people = [Person("ana", ("staff",))]
    documents = [*base_documents(["tokens"], catalogue="desk"), tokens_of(people), http_tool("echo", 1)]
    documents += [catalogue("a-rest", ["role:staff"], ["*"], publish={"as": ["http"]})]
    documents += [catalogue("desk", ["role:staff"], ["*"], publish={"as": ["mcp"]})]
    written = write_project(tmp_path / "p", documents, policy=POLICY)

    with start_gateway_process(written, tmp_path / "data", env=environ_of(people)) as gateway:
        url, lines = gateway.url, gateway.output.splitlines()
        assert gateway.process.stdout is not None
        lines += [gateway.process.stdout.readline().rstrip() for _ in range(2)]

    assert f"  REST   {url}/v1/catalogues/a-rest   a-rest: 1 tool in the catalogue" in lines
    assert f"  MCP    {url}/desk/mcp   desk: 1 tool in the catalogue, also at {url}/mcp" in lines
    assert f"{url}/a-rest/mcp" not in gateway.output
    assert lines[-3] == f"try: curl -H 'Authorization: Bearer TOKEN' {url}/v1/catalogues/a-rest/tools"
    inspector = "     npx @modelcontextprotocol/inspector@latest --cli"
    options = "--transport http --header 'Authorization: Bearer TOKEN' --method tools/list"
    assert lines[-2] == f"{inspector} {url}/desk/mcp {options}"
    assert "Node 22.19" in lines[-1]


@pytest.mark.parametrize("options", WORKERS)
def test_many_warnings_are_counted_not_printed(options: tuple[str, ...], tmp_path: Path) -> None:
    with start_gateway_process(project(tmp_path, warnings=50), tmp_path / "data", options=options) as gateway:
        lines = gateway.output.splitlines()

    assert len([line for line in lines if line.startswith("  warning: ")]) == 20
    assert "  and 32 more; run gateway check to see them" in lines  # two are about the decision log


def test_few_warnings_are_all_printed(tmp_path: Path) -> None:
    with start_gateway_process(project(tmp_path, warnings=18), tmp_path / "data") as gateway:
        assert gateway.output.count("  warning: ") == 20
        assert "more; run" not in gateway.output


@contextmanager
def unread_pipe() -> Iterator[int]:
    """Yield the write end of a full pipe that is not read."""
    reading, writing = os.pipe()
    try:
        size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writing, b"x" * size)
        yield writing
    finally:
        os.close(reading)
        os.close(writing)


@contextmanager
def closed_pipe() -> Iterator[int]:
    """Yield the write end of a pipe whose read end is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


@pytest.mark.parametrize("options", WORKERS)
@pytest.mark.parametrize("pipe", [unread_pipe, closed_pipe], ids=["full", "closed"])
def test_unread_output_stops_nothing(pipe: object, options: tuple[str, ...], tmp_path: Path) -> None:
    assert callable(pipe)
    port, admin_port = free_ports()
    ports = ["--port", str(port), "--admin-port", str(admin_port)]
    arguments = ("serve", "--configs", str(project(tmp_path, warnings=50)), *ports, *options)
    env = {**os.environ, "GATEWAY_DATA_DIR": str(tmp_path / "data")}
    with pipe() as output:
        process = start_command(*arguments, stdout=output, env=env)
        try:
            until_ready(admin_port)
            send_nonsense(port)

            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
            process.wait()


def free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def until_ready(port: int) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                assert answer.status == 200
                return
        except (urllib.error.URLError, TimeoutError):
            assert time.monotonic() < until, "the gateway does not come up"
            time.sleep(0.02)


def send_nonsense(port: int) -> None:
    """Send invalid requests; the gateway logs each of them."""
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(b"\x00\r\n\r\n")
            assert client.recv(1024).startswith(b"HTTP/1.1 400")
