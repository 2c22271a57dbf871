"""`gateway status` of gateways in every state, told by a server that answers as their admin plane does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.cli.served import status_pairs

TOLD: dict[str, Any] = {
    "name": "shop",
    "revision": "a" * 64,
    "since": "2026-11-17T00:00:00Z",
    "source": {"folder": "configs"},
    "lastReload": None,
    "workers": 2,
    "revisions": {"0": "a" * 64, "1": "a" * 64},
    "catalogues": [{"name": "shop", "path": "/shop", "tools": 3}],
    "runningCalls": 0,
    "storage": {"databaseBytes": 1024, "spoolBytes": 2048},
    "upstreams": [],
    "warnings": [],
}


class _Admin(BaseHTTPRequestHandler):
    told: dict[str, Any] = TOLD

    def do_GET(self) -> None:
        body = json.dumps(self.told).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def admin() -> Iterator[type[_Admin]]:
    class Here(_Admin):
        url = ""

    with ThreadingHTTPServer(("127.0.0.1", 0), Here) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        Here.url = f"http://127.0.0.1:{server.server_port}"
        yield Here
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("changed", "words", "other_words"),
    [
        pytest.param({}, ["1,024 bytes of records, 2,048 of results"], ["does not answer"], id="files"),
        pytest.param(
            {"storage": {"databaseBytes": 5, "spoolBucket": "results"}}, ["results in bucket results"], [], id="bucket"
        ),
        pytest.param(
            {"storage": {"databaseBytes": None, "spoolBytes": 1}}, ["records cannot be reached"], [], id="database down"
        ),
        pytest.param(
            {"revisions": {"0": "a" * 64, "1": "b" * 64, "2": None}},
            ["worker 1 serves revision bbbbbbbbbbbb", "worker 2 does not answer"],
            ["worker 0"],
            id="workers apart",
        ),
    ],
)
def test_state_is_told(changed: dict[str, Any], words: list[str], other_words: list[str], admin: Any) -> None:
    admin.told = {**TOLD, **changed}
    result = CliRunner().invoke(app, ["status", "--url", admin.url])

    assert result.exit_code == 0, result.output
    assert all(each in result.output for each in words), result.output
    assert not any(each in result.output for each in other_words)


def shown(**more: Any) -> dict[str, str]:
    return dict(status_pairs({**TOLD, **more}))


def test_names_that_two_wanted_are_told_with_who_got_them() -> None:
    row = {"catalogue": "shop", "kind": "tool", "name": "find", "existing": "tool find", "incoming": "upstream wiki"}

    found = shown(collisions=[{**row, "outcome": "keep", "reason": "the policy's"}])

    assert found["collisions"] == "shop: tool find of tool find and upstream wiki: keep, the policy's"
    assert "collisions" not in shown()
