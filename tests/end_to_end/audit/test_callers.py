"""The decision log identifies callers: issuer, authentication method, credential, and client program."""

import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.server.http.asgi import AsgiApp, Receive, Scope, Send
from tests.end_to_end.security.test_tokens import BOT, jwt_provider, now_claims, written
from tests.identity.token_samples import ISSUER, signed
from tests.support.audit_log import entries, run_audit_command
from tests.support.gateways.projects import Caller, GatewayUnderTest, start_call_counter, start_gateway

pytestmark = pytest.mark.anyio

KEY = bytes(range(100, 132))
INFO = {"name": "desk-agent", "version": "1.2"}


@asynccontextmanager
async def gateway_of(tmp_path: Path) -> AsyncIterator[GatewayUnderTest]:
    async with start_call_counter() as backend:
        project = written(tmp_path / "p", backend.port, jwt_provider())
        configs = project / "configs" / "all.yaml"
        audited = "spec:\n  audit: {key: {fromEnv: AUDIT_KEY}}\n"
        head, _, rest = configs.read_text(encoding="utf-8").partition("spec:\n")
        configs.write_text(f"{head}{audited}{rest}", encoding="utf-8")
        environ = {"AUDIT_KEY": KEY.hex()}
        async with start_gateway(project, tmp_path / "data", people=[BOT], environ=environ) as found:
            yield found


def hash_token(id: str) -> str:
    return hmac.digest(KEY, b"token\n" + id.encode(), "sha256").hex()


def callers(database: Path) -> list[dict[str, Any]]:
    return [each["caller"] for each in entries(database) if each["event"] == "call-settled"]


async def test_log_holds_how_a_caller_was_recognised_and_never_the_token(tmp_path: Path) -> None:
    named, nameless = signed(now_claims(jti="token-7")), signed(now_claims(jti=None))
    async with gateway_of(tmp_path) as gateway:
        for token in (named, nameless, BOT.token):
            answer = await Caller(gateway.ask, token).rest_call("desk", "echo", {"text": "x"})
            assert answer.status == 200, answer.body

    database = tmp_path / "data" / "gateway.db"
    found = callers(database)
    digests = [sha256(each.encode()).hexdigest() for each in (nameless, BOT.token)]
    assert [(each["subject"], each["issuer"], each["authMethod"], each["token"]) for each in found] == [
        ("user:ada", ISSUER, "jwt", hash_token("token-7")),
        ("user:ada", ISSUER, "jwt", hash_token(digests[0])),
        ("user:bot", "tokens", "token", hash_token(digests[1])),
    ]
    kept = b"".join(file.read_bytes() for file in database.parent.glob("gateway.db*") if file.is_file())
    assert not [secret for secret in (named, nameless, BOT.token, "token-7", *digests) if secret.encode() in kept]


async def test_log_names_the_client_program(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        ada = Caller(from_address(gateway, "192.0.2.7"), signed(now_claims()))
        meta = {"io.modelcontextprotocol/clientInfo": INFO}
        await ada.modern_call("desk", "echo", {"text": "x"}, **meta)
        await ada.modern_call("desk", "echo", {"text": "x"}, **{"io.modelcontextprotocol/clientInfo": "no object"})
        session = await ada.begin_legacy("desk")
        params = {"name": "echo", "arguments": {"text": "x"}}
        await ada.legacy("desk", "tools/call", params, session=session)

    address = {"address": "192.0.2.7"}
    found = [each["client"] for each in callers(tmp_path / "data" / "gateway.db")]
    assert found == [{**INFO, **address}, address, {"name": "test", "version": "0", **address}]


async def test_exports_contain_callers_too(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        ada = Caller(from_address(gateway, "192.0.2.7"), signed(now_claims(jti="token-7")))
        await ada.modern_call("desk", "echo", {"text": "x"}, **{"io.modelcontextprotocol/clientInfo": INFO})
    database = tmp_path / "data" / "gateway.db"

    cef = run_audit_command("export", "--database", database, "--format", "cef").output
    ocsf = run_audit_command("export", "--database", database, "--format", "ocsf").output

    [line] = [each for each in cef.splitlines() if "|call-settled|" in each]
    for part in (
        "shost=192.0.2.7",
        "requestClientApplication=desk-agent",
        "gatewayAuthMethod=jwt",
        f"flexString1={ISSUER}",
        f"flexString2={hash_token('token-7')}",
    ):
        assert part in line
    [event] = [each for each in map(json.loads, ocsf.splitlines()) if each["metadata"]["event_code"] == "call-settled"]
    assert event["actor"]["session"] == {"issuer": ISSUER, "credential_uid": hash_token("token-7")}
    assert event["actor"]["idp"] == {"name": ISSUER, "protocol_name": "jwt"}
    assert event["actor"]["app_name"] == "desk-agent"
    assert event["src_endpoint"] == {"ip": "192.0.2.7"}


def from_address(gateway: GatewayUnderTest, address: str) -> Any:
    """Return a sender whose connections come from `address`."""
    return gateway.asked_by(lambda app: _replace_address(app, address))


def _replace_address(app: AsgiApp, address: str) -> AsgiApp:
    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "client": (address, 40000)}, receive, send)

    return asked
