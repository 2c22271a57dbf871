"""Tokens for upstream servers from a certified OpenID Connect server: for the gateway, and for each of its callers.

The upstream server accepts only tokens that this issuer signed for it. Needs Node and npm.
"""

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt.algorithms import RSAAlgorithm
from mcp import Client

from gateway.backends.mcp.credentials import AssertionSigner, OAuthCredentials, TokenGrant
from gateway.backends.mcp.http_client import UpstreamEndpoint
from gateway.backends.mcp.http_transport import StreamableHttpConnection
from gateway.http_client.pool import HttpConnections
from gateway.model.tools.backend import BackendError
from tests.backends.mcp.auth.test_credentials import ANA, KIM, Caller
from tests.backends.mcp.servers.asgi_host import serve_app
from tests.backends.mcp.servers.front_gateway import gateway, project, upstream
from tests.backends.mcp.servers.reference_server import server as reference_server
from tests.identity.test_oidc_issuer import HERE, Issuer, installed_library
from tests.identity.token_samples import OTHER_RSA, RSA

pytestmark = pytest.mark.anyio

RESOURCE = "https://wiki.example.com/mcp"
PEM = OTHER_RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """An issuer that exchanges tokens signed with the gateway's key."""
    trusted = json.dumps(RSAAlgorithm.to_jwk(OTHER_RSA.public_key(), as_dict=True))
    command = ["node", str(HERE / "issuer.mjs"), str(installed_library()), trusted]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        found = Issuer(process)
        found.use(RSA, "k1")
        yield found
        process.terminate()


class Guarded:
    """An MCP server that checks tokens as the specification requires, and records whose they were."""

    def __init__(self, issuer: str) -> None:
        self._issuer = issuer
        self._app: Any = reference_server().streamable_http_app()
        self.claims: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            try:
                self._check(dict(scope["headers"]).get(b"authorization", b"").decode())
            except jwt.InvalidTokenError:
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)

    def _check(self, header: str) -> None:
        token, key = header.removeprefix("Bearer "), RSA.public_key()
        self.claims.append(jwt.decode(token, key, ["RS256"], audience=RESOURCE, issuer=self._issuer))

    @property
    def subjects(self) -> list[str]:
        return list(dict.fromkeys(each["sub"] for each in self.claims))


@asynccontextmanager
async def connect(issuer: Issuer, guarded: Guarded, **grant: Any) -> AsyncIterator[StreamableHttpConnection]:
    pool = HttpConnections()
    given = {"resource": RESOURCE, "client_secret": lambda: "another-secret", **grant}
    credentials = OAuthCredentials(TokenGrant(f"{issuer.url}/token", "gateway", **given))
    async with serve_app(guarded, lifespan="on") as origin:
        connection = StreamableHttpConnection(
            "wiki", UpstreamEndpoint(f"{origin}/mcp"), pool, ids=count(1), credentials=credentials
        )
        try:
            yield connection
        finally:
            await connection.close()
            await pool.close()


async def call_echo(connection: StreamableHttpConnection, caller: Any = None) -> str:
    exchange = None if caller is None else Caller(caller)
    params = {"name": "echo", "arguments": {"text": "hello"}}
    return str((await connection.request("tools/call", params, exchange=exchange))["content"][0]["text"])


def make_signer(key: str, issuer: Issuer) -> Any:
    return AssertionSigner("https://gateway.example.com", f"{issuer.url}/token", "RS256", lambda: key).sign


@pytest.mark.parametrize("sent_as", ["basic", "post"])
async def test_gateway_is_granted_a_token_of_its_own(issuer: Issuer, sent_as: Any) -> None:
    guarded = Guarded(issuer.url)
    async with connect(issuer, guarded, sent_as=sent_as) as connection:
        await call_echo(connection, ANA)

    assert guarded.subjects == ["gateway"]


async def test_wrong_secret_is_reported_in_a_word(issuer: Issuer) -> None:
    async with connect(issuer, Guarded(issuer.url), client_secret=lambda: "wrong") as connection:
        with pytest.raises(BackendError, match="grants no token for the upstream server: invalid_client"):
            await call_echo(connection)


async def test_server_knows_each_caller(issuer: Issuer) -> None:
    guarded = Guarded(issuer.url)
    async with connect(issuer, guarded, assert_caller=make_signer(PEM, issuer)) as connection:
        for caller in (ANA, KIM, ANA):
            await call_echo(connection, caller)

    assert set(guarded.subjects) == {"gateway", "user:ana", "user:kim"}  # its own requests are in its own name
    assert all(each["client_id"] == "gateway" for each in guarded.claims)


async def test_token_signed_with_another_key_is_not_exchanged(issuer: Issuer) -> None:
    stranger = RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    guarded = Guarded(issuer.url)
    async with connect(issuer, guarded, assert_caller=make_signer(stranger, issuer)) as connection:
        with pytest.raises(BackendError, match="grants no token for the upstream server: invalid_grant"):
            await call_echo(connection, ANA)

    assert "user:ana" not in guarded.subjects


async def test_token_for_another_server_is_not_taken(issuer: Issuer) -> None:
    guarded = Guarded(issuer.url)
    async with connect(issuer, guarded, resource="https://other.example.com/mcp") as connection:
        with pytest.raises(BackendError):
            await call_echo(connection, ANA)

    assert guarded.claims == []


async def test_documents_have_the_gateways_word_exchanged(issuer: Issuer, tmp_path: Path) -> None:
    guarded = Guarded(issuer.url)
    auth = {
        "scheme": "token-exchange",
        "tokenUrl": f"{issuer.url}/token",
        "clientId": "gateway",
        "clientSecret": {"fromEnv": "CLIENT_SECRET"},
        "resource": RESOURCE,
        "assertion": {
            "issuer": "https://gateway.example.com",
            "algorithm": "RS256",
            "key": {"fromEnv": "ASSERTION_KEY"},
        },
    }
    environ = {"CLIENT_SECRET": "another-secret", "ASSERTION_KEY": PEM}
    async with serve_app(guarded, lifespan="on") as origin:
        remote = upstream("wiki", {"type": "streamable-http", "url": f"{origin}/mcp"}, auth=auth)
        made = project(tmp_path / "project", remote)
        async with gateway(made, environ=environ) as started, Client(started.url) as client:
            result: Any = await client.call_tool("wiki_echo", {"text": "hello"})

    assert not result.is_error
    assert set(guarded.subjects) == {"gateway", "user:you"}
