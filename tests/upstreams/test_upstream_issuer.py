"""Tokens for upstream servers from a certified OpenID Connect server: for the gateway, and for each of its callers.

The server behind takes what that issuer has signed for it, and nothing else. Needs Node and npm.
"""

import json
import subprocess
import sys
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
from reference_upstream import server as reference_server
from test_upstream_auth import ANA, KIM, Caller
from upstream_gateway import gateway, project, upstream
from upstream_serving import listening

from gateway.backends.connections import Connections
from gateway.governance.ports import BackendFailed
from gateway.upstreams.assertions import Assertion
from gateway.upstreams.auth import Grant, GrantedCredentials
from gateway.upstreams.http import HttpConnection
from gateway.upstreams.wire import Endpoint

sys.path.append(str(Path(__file__).parent.parent / "identity"))  # whose issuer is used here, too
from test_oidc_issuer import HERE, Issuer, installed_library
from token_samples import OTHER_RSA, RSA

pytestmark = pytest.mark.anyio

RESOURCE = "https://wiki.example.com/mcp"
PEM = OTHER_RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """It exchanges what is said under the gateway's key."""
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
    """An MCP server that checks tokens as the specification wants it, and notes whose they were."""

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
async def connected(issuer: Issuer, guarded: Guarded, **grant: Any) -> AsyncIterator[HttpConnection]:
    pool = Connections()
    given = {"resource": RESOURCE, "client_secret": lambda: "another-secret", **grant}
    credentials = GrantedCredentials(Grant(f"{issuer.url}/token", "gateway", **given))
    async with listening(guarded, lifespan="on") as origin:
        connection = HttpConnection("wiki", Endpoint(f"{origin}/mcp"), pool, ids=count(1), credentials=credentials)
        try:
            yield connection
        finally:
            await connection.close()
            await pool.close()


async def echoed(connection: HttpConnection, caller: Any = None) -> str:
    exchange = None if caller is None else Caller(caller)
    params = {"name": "echo", "arguments": {"text": "hello"}}
    return str((await connection.request("tools/call", params, exchange=exchange))["content"][0]["text"])


def said_under(key: str, issuer: Issuer) -> Any:
    return Assertion("https://gateway.example.com", f"{issuer.url}/token", "RS256", lambda: key).of


@pytest.mark.parametrize("sent_as", ["basic", "post"])
async def test_gateway_is_granted_a_token_of_its_own(issuer: Issuer, sent_as: Any) -> None:
    guarded = Guarded(issuer.url)
    async with connected(issuer, guarded, sent_as=sent_as) as connection:
        await echoed(connection, ANA)

    assert guarded.subjects == ["gateway"]


async def test_wrong_secret_is_told_in_a_word(issuer: Issuer) -> None:
    async with connected(issuer, Guarded(issuer.url), client_secret=lambda: "wrong") as connection:
        with pytest.raises(BackendFailed, match="grants no token for the upstream server: invalid_client"):
            await echoed(connection)


async def test_each_caller_is_somebody_to_the_server(issuer: Issuer) -> None:
    guarded = Guarded(issuer.url)
    async with connected(issuer, guarded, assert_caller=said_under(PEM, issuer)) as connection:
        for caller in (ANA, KIM, ANA):
            await echoed(connection, caller)

    assert set(guarded.subjects) == {"gateway", "user:ana", "user:kim"}  # what it asks for itself is in its own name
    assert all(each["client_id"] == "gateway" for each in guarded.claims)


async def test_what_is_said_under_another_key_is_exchanged_for_nothing(issuer: Issuer) -> None:
    stranger = RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    guarded = Guarded(issuer.url)
    async with connected(issuer, guarded, assert_caller=said_under(stranger, issuer)) as connection:
        with pytest.raises(BackendFailed, match="grants no token for the upstream server: invalid_grant"):
            await echoed(connection, ANA)

    assert "user:ana" not in guarded.subjects


async def test_token_for_another_server_is_not_taken(issuer: Issuer) -> None:
    guarded = Guarded(issuer.url)
    async with connected(issuer, guarded, resource="https://other.example.com/mcp") as connection:
        with pytest.raises(BackendFailed):
            await echoed(connection, ANA)

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
    async with listening(guarded, lifespan="on") as origin:
        remote = upstream("wiki", {"type": "streamable-http", "url": f"{origin}/mcp"}, auth=auth)
        made = project(tmp_path / "project", remote)
        async with gateway(made, environ=environ) as started, Client(started.url) as client:
            result: Any = await client.call_tool("wiki_echo", {"text": "hello"})

    assert not result.is_error
    assert set(guarded.subjects) == {"gateway", "user:you"}
