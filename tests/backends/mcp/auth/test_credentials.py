"""Credentials for upstreams: secrets, granted tokens, tokens per caller. A caller's own token is never forwarded."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
import pytest
from mcp import Client

from gateway.backends.http.credentials import BearerAuth
from gateway.backends.mcp.credentials import (
    AssertionSigner,
    OAuthCredentials,
    StaticCredentials,
    TokenGrant,
    UpstreamCredentials,
)
from gateway.backends.mcp.http_client import UpstreamEndpoint
from gateway.backends.mcp.http_transport import StreamableHttpConnection
from gateway.http_client.pool import HttpConnections
from gateway.model.caller import Principal
from gateway.model.tools.backend import BackendError
from tests.backends.mcp.servers.asgi_host import serve_app
from tests.backends.mcp.servers.front_gateway import gateway, project, tool, upstream
from tests.backends.mcp.servers.reference_server import server

pytestmark = pytest.mark.anyio

KEY = "a shared secret of more than thirty-two bytes"
ANA, KIM = Principal("user:ana"), Principal("user:kim", tenant="acme")


class Authority:
    """An authorisation server, and an MCP server that accepts only its tokens."""

    def __init__(self) -> None:
        self.forms: list[dict[str, str]] = []
        self.headers: list[str | None] = []
        self.valid: set[str] = set()
        self.life = 3600
        self.refuses: str | None = None
        self._app: Any = server().streamable_http_app()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if scope["path"] == "/token":
            body = (await receive())["body"].decode()
            self.headers.append(headers.get("authorization"))
            self.forms.append({name: values[0] for name, values in parse_qs(body).items()})
            await self._granted(send)
        elif headers.get("authorization", "").removeprefix("Bearer ") in self.valid:
            await self._app(scope, receive, send)
        else:
            await _send_json(send, 401, {})

    async def _granted(self, send: Any) -> None:
        if self.refuses is not None:
            await _send_json(send, 400, {"error": self.refuses, "error_description": "the secret is hunter2"})
            return
        token = f"token-{len(self.forms)}"
        self.valid.add(token)
        await _send_json(send, 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.life})


async def _send_json(send: Any, status: int, body: Mapping[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


class Caller:
    def __init__(self, principal: Principal) -> None:
        self.capabilities: Mapping[str, Any] = {}
        self.wants_progress = False
        self.log_level: str | None = None
        self.principal: Principal | None = principal

    def handle_notification(self, method: str, params: Mapping[str, Any]) -> None: ...

    async def handle_request(self, method: str, params: Mapping[str, Any]) -> Any:
        raise AssertionError("nobody asks here")


@asynccontextmanager
async def connect(authority: Authority, made: Any) -> AsyncIterator[StreamableHttpConnection]:
    pool = HttpConnections()
    async with serve_app(authority, lifespan="on") as origin:
        credentials: UpstreamCredentials = made(f"{origin}/token")
        connection = StreamableHttpConnection(
            "guarded", UpstreamEndpoint(f"{origin}/mcp"), pool, ids=count(1), credentials=credentials
        )
        try:
            yield connection
        finally:
            await connection.close()
            await pool.close()


def make_credentials(**more: Any) -> Any:
    return lambda url: OAuthCredentials(TokenGrant(url, "gate way", lambda: "s/cret", **more))


async def token(connection: StreamableHttpConnection, caller: Principal | None = None) -> str:
    exchange = None if caller is None else Caller(caller)
    result = await connection.request("tools/call", {"name": "token", "arguments": {}}, exchange=exchange)
    return str(result["content"][0]["text"])


async def test_fixed_token_is_sent_and_a_wrong_one_is_reported() -> None:
    authority, other = Authority(), Authority()
    authority.valid.add("fixed")
    async with connect(authority, lambda url: StaticCredentials(BearerAuth(lambda: "fixed"))) as connection:
        right = await token(connection)
    async with connect(other, lambda url: StaticCredentials(BearerAuth(lambda: "wrong"))) as connection:
        with pytest.raises(BackendError) as refused:
            await token(connection)

    assert right == "Bearer fixed"
    assert refused.value.word == "not-permitted"
    assert "wrong" not in refused.value.message


async def test_granted_token_is_fetched_once_for_many_calls() -> None:
    authority = Authority()
    async with connect(authority, make_credentials(scopes=("read", "write"), audience="wiki")) as connection:
        seen = await asyncio.gather(*(token(connection) for _ in range(10)))

    assert set(seen) == {"Bearer token-1"}
    assert authority.forms == [{"grant_type": "client_credentials", "scope": "read write", "audience": "wiki"}]
    packed = base64.b64encode(b"gate+way:s%2Fcret").decode()
    assert authority.headers == [f"Basic {packed}"]


async def test_token_that_is_refused_is_renewed_once() -> None:
    authority = Authority()
    async with connect(authority, make_credentials(sent_as="post")) as connection:
        await token(connection)
        authority.valid.clear()
        renewed = await token(connection)

    assert renewed == "Bearer token-2"
    assert authority.forms[0]["client_secret"] == "s/cret"
    assert authority.headers == [None, None]


async def test_token_is_renewed_before_it_ends() -> None:
    authority, now = Authority(), [0.0]
    authority.life = 100

    def made(url: str) -> UpstreamCredentials:
        return OAuthCredentials(TokenGrant(url, "id", lambda: "secret"), clock=lambda: now[0])

    async with connect(authority, made) as connection:
        first = await token(connection)
        now[0] = 69.0
        second = await token(connection)
        now[0] = 71.0
        third = await token(connection)

    assert (first, second, third) == ("Bearer token-1", "Bearer token-1", "Bearer token-2")


async def test_each_caller_has_a_token_of_their_own() -> None:
    authority = Authority()
    signer = AssertionSigner("https://gateway.example.com", "the-authority", "HS256", lambda: KEY)
    async with connect(authority, make_credentials(assert_caller=signer.sign)) as connection:
        seen = [await token(connection, who) for who in (ANA, KIM, ANA)]
        own = await token(connection)

    exchanged = [form for form in authority.forms if "subject_token" in form]
    claims = [jwt.decode(each["subject_token"], KEY, ["HS256"], audience="the-authority") for each in exchanged]
    assert seen[0] == seen[2] != seen[1]
    assert own not in seen, "what the gateway wants to know for itself it asks in its own name"
    assert [each["sub"] for each in claims] == ["user:ana", "user:kim"]
    assert [each.get("tenant") for each in claims] == [None, "acme"]
    assert exchanged[0]["grant_type"] == "urn:ietf:params:oauth:grant-type:token-exchange"
    assert all(each["exp"] - each["iat"] == 60 for each in claims)


async def test_refusal_of_an_authority_is_one_word_of_the_standard() -> None:
    authority = Authority()
    authority.refuses = "invalid_client"
    async with connect(authority, make_credentials()) as connection:
        with pytest.raises(BackendError) as refused:
            await token(connection)

    assert refused.value.message == "the authorisation server grants no token for the upstream server: invalid_client"


async def test_documents_declare_how_tokens_are_granted(tmp_path: Path) -> None:
    authority = Authority()
    async with serve_app(authority, lifespan="on") as origin:
        auth = {
            "scheme": "token-exchange",
            "tokenUrl": f"{origin}/token",
            "clientId": "gateway",
            "clientSecret": {"fromEnv": "CLIENT_SECRET"},
            "assertion": {"issuer": "gateway", "algorithm": "HS256", "key": {"fromEnv": "ASSERTION_KEY"}},
        }
        remote = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"}, auth=auth)
        folder = project(tmp_path / "project", remote, tool("token"))
        environ = {"CLIENT_SECRET": "hush", "ASSERTION_KEY": KEY}
        async with gateway(folder, environ=environ) as started, Client(started.url, mode="2026-07-28") as client:
            called = await client.call_tool("token")

    subjects = [
        jwt.decode(each["subject_token"], KEY, ["HS256"], audience=f"{origin}/token")["sub"]
        for each in authority.forms
        if "subject_token" in each
    ]
    assert "Bearer token-" in str(called.content)
    assert subjects == ["user:you"]
