"""Who the gateway is to a server: secrets, granted tokens, tokens for callers. No caller's token goes anywhere."""

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
from reference_upstream import server
from upstream_gateway import gateway, project, tool, upstream
from upstream_serving import listening

from gateway.backends.connections import Connections
from gateway.backends.credentials import BearerAuth
from gateway.governance.ports import BackendFailed
from gateway.governance.principals import Principal
from gateway.upstreams.assertions import Assertion
from gateway.upstreams.auth import Credentials, FixedCredentials, Grant, GrantedCredentials
from gateway.upstreams.http import HttpConnection
from gateway.upstreams.wire import Endpoint

pytestmark = pytest.mark.anyio

KEY = "a shared secret of more than thirty-two bytes"
ANA, KIM = Principal("user:ana"), Principal("user:kim", tenant="acme")


class Authority:
    """An authorisation server and the MCP server that takes its tokens alone."""

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
            await _answered(send, 401, {})

    async def _granted(self, send: Any) -> None:
        if self.refuses is not None:
            await _answered(send, 400, {"error": self.refuses, "error_description": "the secret is hunter2"})
            return
        token = f"token-{len(self.forms)}"
        self.valid.add(token)
        await _answered(send, 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.life})


async def _answered(send: Any, status: int, body: Mapping[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


class Caller:
    def __init__(self, principal: Principal) -> None:
        self.capabilities: Mapping[str, Any] = {}
        self.wants_progress = False
        self.log_level: str | None = None
        self.principal: Principal | None = principal

    def notified(self, method: str, params: Mapping[str, Any]) -> None: ...

    async def asked(self, method: str, params: Mapping[str, Any]) -> Any:
        raise AssertionError("nobody asks here")


@asynccontextmanager
async def connected(authority: Authority, made: Any) -> AsyncIterator[HttpConnection]:
    pool = Connections()
    async with listening(authority, lifespan="on") as origin:
        credentials: Credentials = made(f"{origin}/token")
        connection = HttpConnection("guarded", Endpoint(f"{origin}/mcp"), pool, ids=count(1), credentials=credentials)
        try:
            yield connection
        finally:
            await connection.close()
            await pool.close()


def granted(**more: Any) -> Any:
    return lambda url: GrantedCredentials(Grant(url, "gate way", lambda: "s/cret", **more))


async def token(connection: HttpConnection, caller: Principal | None = None) -> str:
    exchange = None if caller is None else Caller(caller)
    result = await connection.request("tools/call", {"name": "token", "arguments": {}}, exchange=exchange)
    return str(result["content"][0]["text"])


async def test_fixed_token_is_sent_and_a_wrong_one_is_told() -> None:
    authority, other = Authority(), Authority()
    authority.valid.add("fixed")
    async with connected(authority, lambda url: FixedCredentials(BearerAuth(lambda: "fixed"))) as connection:
        right = await token(connection)
    async with connected(other, lambda url: FixedCredentials(BearerAuth(lambda: "wrong"))) as connection:
        with pytest.raises(BackendFailed) as refused:
            await token(connection)

    assert right == "Bearer fixed"
    assert refused.value.word == "not-permitted"
    assert "wrong" not in refused.value.message


async def test_granted_token_is_fetched_once_for_many_calls() -> None:
    authority = Authority()
    async with connected(authority, granted(scopes=("read", "write"), audience="wiki")) as connection:
        seen = await asyncio.gather(*(token(connection) for _ in range(10)))

    assert set(seen) == {"Bearer token-1"}
    assert authority.forms == [{"grant_type": "client_credentials", "scope": "read write", "audience": "wiki"}]
    packed = base64.b64encode(b"gate+way:s%2Fcret").decode()
    assert authority.headers == [f"Basic {packed}"]


async def test_token_that_is_refused_is_renewed_once() -> None:
    authority = Authority()
    async with connected(authority, granted(sent_as="post")) as connection:
        await token(connection)
        authority.valid.clear()
        renewed = await token(connection)

    assert renewed == "Bearer token-2"
    assert authority.forms[0]["client_secret"] == "s/cret"
    assert authority.headers == [None, None]


async def test_token_is_renewed_before_it_ends() -> None:
    authority, now = Authority(), [0.0]
    authority.life = 100

    def made(url: str) -> Credentials:
        return GrantedCredentials(Grant(url, "id", lambda: "secret"), clock=lambda: now[0])

    async with connected(authority, made) as connection:
        first = await token(connection)
        now[0] = 69.0
        second = await token(connection)
        now[0] = 71.0
        third = await token(connection)

    assert (first, second, third) == ("Bearer token-1", "Bearer token-1", "Bearer token-2")


async def test_each_caller_has_a_token_of_their_own() -> None:
    authority = Authority()
    says = Assertion("https://gateway.example.com", "the-authority", "HS256", lambda: KEY)
    async with connected(authority, granted(assert_caller=says.of)) as connection:
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
    async with connected(authority, granted()) as connection:
        with pytest.raises(BackendFailed) as refused:
            await token(connection)

    assert refused.value.message == "the authorisation server grants no token for the upstream server: invalid_client"


async def test_documents_say_how_tokens_are_granted(tmp_path: Path) -> None:
    authority = Authority()
    async with listening(authority, lifespan="on") as origin:
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
