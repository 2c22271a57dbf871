"""Starts that are refused: each prints one line with the cause and the remedy, and opens no listener."""

import os
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import GatewayError
from tests.identity.token_samples import RSA, jwk, jwks
from tests.support.gateways.commands import run_gateway
from tests.support.gateways.projects import (
    Document,
    Person,
    base_documents,
    catalogue,
    document,
    environ_of,
    http_tool,
    start_gateway,
    tokens_of,
    write_project,
)

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("staff",))
POLICY = "p, role:staff, *, tool:*, invoke, internal, allow\n"
TOKEN = sha256(b"a token").hexdigest()


def jwt_provider() -> Document:
    spec = {"type": "jwt", "issuer": "https://login.example.com", "audience": ["gateway"], "algorithms": ["RS256"]}
    return document("IdentityProvider", "corp", {**spec, "keys": {"fromFile": "keys.json"}})


def anonymous_provider() -> Document:
    return document("IdentityProvider", "local", {"type": "none", "subject": "user:you", "roles": ["role:staff"]})


@dataclass
class Start:
    """How one start differs from a valid one."""

    folder: Path
    identity: str = "tokens"
    env: dict[str, str] = field(default_factory=lambda: {ANA.variable: TOKEN})
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def write(self) -> Path:
        providers = {"tokens": tokens_of([ANA]), "corp": jwt_provider(), "local": anonymous_provider()}
        documents = [*base_documents([self.identity]), providers[self.identity], http_tool("echo", 1)]
        documents.append(catalogue("desk", ["role:staff"], ["*"]))
        return write_project(self.folder / "p", documents, policy=POLICY)


def not_a_loopback_address_without_identity(start: Start) -> None:
    start.identity, start.settings = "local", {"host": "0.0.0.0", "public_url": "https://gw.example.com"}


def every_ipv6_address_without_identity(start: Start) -> None:
    start.identity, start.settings = "local", {"host": "::", "public_url": "https://gw.example.com"}


def a_name_without_identity(start: Start) -> None:
    start.identity, start.settings = "local", {"host": "gw.example.com", "public_url": "https://gw.example.com"}


def no_public_url(start: Start) -> None:
    start.settings = {"host": "0.0.0.0"}


def missing_secret(start: Start) -> None:
    start.env = {}


def empty_secret(start: Start) -> None:
    start.env = {ANA.variable: ""}


def short_secret(start: Start) -> None:
    start.env = {ANA.variable: TOKEN[:-1]}


def the_token_instead_of_its_digest(start: Start) -> None:
    start.env = {ANA.variable: ANA.token}


def missing_keys(start: Start) -> None:
    start.identity = "corp"


def keys_that_are_a_folder(start: Start) -> None:
    start.identity = "corp"
    (start.write() / "configs" / "keys.json").mkdir()


def broken_keys(start: Start) -> None:
    start.identity = "corp"
    (start.write() / "configs" / "keys.json").write_text("{broken", encoding="utf-8")


def no_keys(start: Start) -> None:
    start.identity = "corp"
    (start.write() / "configs" / "keys.json").write_bytes(jwks())


def private_keys(start: Start) -> None:
    start.identity = "corp"
    exposed = {**jwk(RSA, "k1"), "d": "c2VjcmV0LW51bWJlcg"}
    (start.write() / "configs" / "keys.json").write_bytes(jwks(exposed))


def a_file_for_a_folder(start: Start) -> None:
    start.data.write_text("not a folder", encoding="utf-8")


def a_world_writable_folder(start: Start) -> None:
    start.data.mkdir()
    start.data.chmod(0o777)


def a_newer_database(start: Start) -> None:
    start.data.mkdir(mode=0o700)
    with sqlite3.connect(start.data / "gateway.db") as database:
        database.execute("CREATE TABLE schema_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO schema_version VALUES ('from-the-future')")
        database.execute(f"PRAGMA application_id = {0x67772E31}")
    database.close()


def a_database_of_another_program(start: Start) -> None:
    start.data.mkdir(mode=0o700)
    with sqlite3.connect(start.data / "gateway.db") as database:
        database.execute("CREATE TABLE bookmarks (url TEXT)")
    database.close()


def what_is_no_database(start: Start) -> None:
    start.data.mkdir(mode=0o700)
    (start.data / "gateway.db").write_bytes(b"x" * 4096)


REFUSED: dict[Callable[[Start], None], str] = {
    not_a_loopback_address_without_identity: "loopback only",
    every_ipv6_address_without_identity: "loopback only",
    a_name_without_identity: "loopback only",
    no_public_url: "public URL",
    missing_secret: ANA.variable,
    empty_secret: ANA.variable,
    short_secret: "64 hexadecimal digits",
    the_token_instead_of_its_digest: "64 hexadecimal digits",
    missing_keys: "keys",
    keys_that_are_a_folder: "keys",
    broken_keys: "keys",
    no_keys: "keys",
    private_keys: "keys",
    a_file_for_a_folder: "cannot be opened",
    a_world_writable_folder: "all users may write",
    a_newer_database: "newer than this program",
    a_database_of_another_program: "another program",
    what_is_no_database: "database",
}
SECRETS = (ANA.token, TOKEN[:-1], "c2VjcmV0LW51bWJlcg")


@pytest.mark.parametrize("spoil", REFUSED, ids=lambda each: each.__name__)
async def test_start_is_refused_in_one_line(spoil: Callable[[Start], None], tmp_path: Path) -> None:
    start = Start(tmp_path)
    spoil(start)
    with pytest.raises(GatewayError) as refusal:
        async with start_gateway(start.write(), start.data, environ=start.env, **start.settings):
            pass

    error = refusal.value
    text = f"{error.message} {error.help}"
    assert REFUSED[spoil] in text
    assert error.help, "it says what to do"
    assert "\n" not in text
    assert not [secret for secret in SECRETS if secret in text]


def run(start: Start, *options: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, **start.env, "GATEWAY_DATA_DIR": str(start.data)}
    ports = ["--port", "0", "--admin-port", "0"]
    return run_gateway("serve", "--configs", str(start.write()), *ports, *options, env=env)


@pytest.mark.parametrize(
    ("spoil", "options"),
    [
        (not_a_loopback_address_without_identity, ["--host", "0.0.0.0"]),
        (the_token_instead_of_its_digest, []),
        (missing_keys, []),
        (a_newer_database, []),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_process_that_does_not_start_prints_why_and_ends(
    spoil: Callable[[Start], None], options: list[str], tmp_path: Path
) -> None:
    start = Start(tmp_path)
    spoil(start)
    answer = run(start, *options)

    assert answer.returncode == 1
    assert REFUSED[spoil] in answer.stderr
    assert "Traceback" not in answer.stderr
    assert len(answer.stderr.strip().splitlines()) <= 2
    assert answer.stdout == ""
    assert not [secret for secret in SECRETS if secret in answer.stderr]


async def test_whatever_is_written_is_for_the_gateway_alone(tmp_path: Path) -> None:
    start = Start(tmp_path, env=environ_of([ANA]))
    start.data.mkdir()
    start.data.chmod(0o755)
    before = os.umask(0)
    try:
        async with start_gateway(start.write(), start.data, environ=start.env) as gateway:
            assert (await gateway.caller(ANA).rest_call("desk", "echo", {"text": "x" * 200_000})).status == 424
            found = {path: stat.S_IMODE(path.lstat().st_mode) for path in start.data.rglob("*")}
    finally:
        os.umask(before)

    assert found
    assert {path: oct(mode) for path, mode in found.items() if mode & 0o077} == {}
