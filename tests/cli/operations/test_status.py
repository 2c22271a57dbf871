"""`gateway status` of gateways in every state; a fake server answers like their admin API."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.cli.operations.status import format_status

STATUS: dict[str, Any] = {
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
    reply: dict[str, Any] = STATUS

    status = 200

    def do_GET(self) -> None:
        body = json.dumps(self.reply).encode()
        self.send_response(self.status)
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
        pytest.param(
            {"lastReload": {"outcome": "refused", "at": "noon", "problems": ["a.yaml:1:2: no", "b\nspoofed  yes"]}},
            ["last reload    refused at noon", "\n               a.yaml:1:2: no", "\n               b␊spoofed  yes"],
            [],
            id="refused reload",
        ),
    ],
)
def test_state_is_reported(changed: dict[str, Any], words: list[str], other_words: list[str], admin: Any) -> None:
    admin.reply = {**STATUS, **changed}
    result = CliRunner().invoke(app, ["status", "--url", admin.url])

    assert result.exit_code == 0, result.output
    assert all(each in result.output for each in words), result.output
    assert not any(each in result.output for each in other_words)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (404, "is not the admin plane of a gateway; give the URL of the admin plane with --url"),
        (401, "the gateway does not accept the token; give a valid token with --token-file"),
        (403, "you may not"),
    ],
)
@pytest.mark.parametrize("command", ["status", "upstreams"])
def test_refusal_shows_what_to_do(status: int, words: str, command: str, admin: Any) -> None:
    admin.reply, admin.status = {"detail": "you may not"}, status
    result = CliRunner().invoke(app, [command, "--url", admin.url])

    assert result.exit_code == 1
    assert words in result.output


def shown(**more: Any) -> dict[str, str | tuple[str, ...]]:
    return dict(format_status({**STATUS, **more}))


def test_collisions_are_listed_with_their_winner() -> None:
    row = {"catalogue": "shop", "kind": "tool", "name": "find", "existing": "tool find", "incoming": "upstream wiki"}

    found = shown(collisions=[{**row, "outcome": "keep", "reason": "the policy's"}])

    assert found["collisions"] == ("shop: tool find of tool find and upstream wiki: keep, the policy's",)
    assert "collisions" not in shown()


@pytest.mark.parametrize(
    ("grants", "expected"),
    [
        ({"inForce": [], "problem": None}, None),
        ({"inForce": None, "problem": "the store is away"}, "none is in force: the store is away"),
        (
            {"inForce": [{"role": "role:a", "subject": "user:b", "until": "2026-11-19T12:00:00Z"}], "problem": None},
            ("role:a for user:b until 2026-11-19T12:00:00Z",),
        ),
    ],
)
def test_grants_in_force_are_shown(grants: Any, expected: Any) -> None:
    assert dict(format_status({**STATUS, "grants": grants})).get("grants") == expected
