"""Tokens over the wire: which are refused, with which answer, on every route; and that tokens are never stored or
logged.
"""

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from gateway.server.rest.operation_table import OPERATIONS
from tests.identity.test_oidc_issuer import GATEWAY, Issuer, server
from tests.identity.token_samples import (
    AUDIENCE,
    ISSUER,
    OTHER_RSA,
    P256,
    RSA,
    claims,
    encoded,
    jwk,
    jwks,
    signed,
    signed_with_the_public_key_as_a_secret,
)
from tests.support.gateways.process import start_gateway_process
from tests.support.gateways.projects import (
    CallCounter,
    Caller,
    Document,
    GatewayUnderTest,
    Person,
    Reply,
    base_documents,
    catalogue,
    document,
    environ_of,
    http_tool,
    send_http,
    start_call_counter,
    start_gateway,
    tokens_of,
    write_project,
)

__all__ = ["server"]  # the fixture that starts a real issuer
pytestmark = pytest.mark.anyio

BOT = Person("bot", ("member",))
POLICY = "p, role:member, *, tool:*, discover|invoke, internal, allow\n"


def jwt_provider(**changes: Any) -> Document:
    spec = {
        "type": "jwt",
        "issuer": ISSUER,
        "audience": [AUDIENCE],
        "algorithms": ["RS256", "ES256"],
        "keys": {"fromFile": "keys/issuer.jwks.json"},
        "roles": {"claim": "groups", "map": {"members": "role:member"}},
    }
    return document("IdentityProvider", "corp", {**spec, **changes})


def written(folder: Path, port: int, provider: Document | None = None, **tool: Any) -> Path:
    documents = [*base_documents(["corp", "tokens"], catalogue="desk"), provider or jwt_provider(), tokens_of([BOT])]
    documents += [http_tool("echo", port, **tool), catalogue("desk", ["role:member"], ["*"])]
    write_project(folder, documents, policy=POLICY)
    keys = folder / "configs" / "keys"
    keys.mkdir(exist_ok=True)
    (keys / "issuer.jwks.json").write_bytes(jwks(jwk(RSA, "k1"), jwk(P256, "curve")))
    return folder


def now_claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    return claims(**{"groups": ["members"], "iat": now, "exp": now + 300, "sub": "ada", **changes})


def good() -> str:
    return signed(now_claims())


def unsigned() -> str:
    header = encoded(json.dumps({"alg": "none", "typ": "JWT", "kid": "k1"}).encode())
    return f"{header}.{encoded(json.dumps(now_claims()).encode())}."


def tampered() -> str:
    header, _, signature = good().split(".")
    return f"{header}.{encoded(json.dumps(now_claims(sub='root')).encode())}.{signature}"


WRONG: dict[str, Callable[[], str]] = {
    "another audience": lambda: signed(now_claims(aud="another")),
    "no audience": lambda: signed(now_claims(aud=None)),
    "another issuer": lambda: signed(now_claims(iss="https://evil.example.com")),
    "no issuer": lambda: signed(now_claims(iss=None)),
    "alg none": unsigned,
    "alg none with a signature": lambda: f"{unsigned()}{good().split('.')[2]}",
    "the public key as a secret": lambda: signed_with_the_public_key_as_a_secret(now_claims()),
    "expired": lambda: signed(now_claims(exp=int(time.time()) - 61)),
    "no exp": lambda: signed(now_claims(exp=None)),
    "exp as text": lambda: signed(now_claims(exp="9999999999")),
    "not yet valid": lambda: signed(now_claims(nbf=int(time.time()) + 90)),
    "issued in the future": lambda: signed(now_claims(iat=int(time.time()) + 90)),
    "unknown kid": lambda: signed(now_claims(), kid="k9"),
    "no kid": lambda: signed(now_claims(), kid=None),
    "kid of a path": lambda: signed(now_claims(), kid="../../../dev/null"),
    "another key": lambda: signed(now_claims(), key=OTHER_RSA),
    "key of another type": lambda: signed(now_claims(), kid="curve"),
    "key brought along": lambda: signed(now_claims(), key=OTHER_RSA, jwk=jwk(OTHER_RSA, "k1")),
    "key address brought along": lambda: signed(now_claims(), key=OTHER_RSA, jku="http://127.0.0.1:1/keys"),
    "tampered": tampered,
    "subject of another kind": lambda: signed(now_claims(sub="ada\nrole:member")),
    "no subject": lambda: signed(now_claims(sub=None)),
    "revoked": lambda: signed(now_claims(jti="revoked-token")),
    "no token of ours": lambda: "agw_" + "x" * 43,
}


def every_request() -> Iterator[tuple[str, str]]:
    """Yield method and path of every route that needs a credential, and of some that do not exist."""
    for operation in OPERATIONS:
        if not operation.is_open:
            yield operation.method, re.sub(r"\{\w+\}", "desk", operation.path)
    for path in ("/mcp", "/desk/mcp", "/nowhere/mcp"):
        for method in ("POST", "GET", "DELETE", "OPTIONS", "PUT"):
            yield method, path
    for path in ("/", "/v1", "/v1/", "/v1/nothing", "/nothing", "/metrics", "/v1/admin", "//desk/mcp", "/desk/mcp/"):
        yield "GET", path
    for hostile in ('/a"b/mcp', "/ä/mcp", "/a\r\nx: y/mcp", "/\\/mcp", "/%/mcp"):
        yield "POST", hostile


def metadata_of(path: str) -> str:
    return f'resource_metadata="http://localhost/.well-known/oauth-protected-resource{path}"'


@asynccontextmanager
async def gateway_of(tmp_path: Path) -> AsyncIterator[tuple[GatewayUnderTest, CallCounter]]:
    async with (
        start_call_counter() as backend,
        start_gateway(written(tmp_path / "p", backend.port), tmp_path / "data", people=[BOT]) as gateway,
    ):
        gateway.running.identities.revoke(token="revoked-token")
        yield gateway, backend


async def refusals(ask: Any, headers: list[tuple[str, str]], suffix: str = "") -> list[tuple[str, str, Reply]]:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "access_token": good()}).encode()
    sent = [("content-type", "application/json"), *headers]
    return [(method, path, await ask(method, f"{path}{suffix}", sent, body)) for method, path in every_request()]


def check(found: list[tuple[str, str, Reply]], word: str | None) -> None:
    """Every route refuses alike; MCP paths also name the metadata of the protected resource."""
    bodies = set()
    for method, path, reply in found:
        assert reply.status == 401, (method, path, reply)
        challenge = reply.header("www-authenticate") or ""
        assert challenge.startswith("Bearer"), (method, path)
        assert challenge.isascii()
        assert challenge.isprintable()
        assert (f'error="{word}"' in challenge) is (word is not None), (method, path, challenge)
        assert ("resource_metadata" in challenge) is path.endswith("/mcp"), (path, challenge)
        bodies.add(reply.body)
    assert len(bodies) == 1


async def test_wrong_tokens_are_refused_on_every_route_without_a_reason(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, backend):
        bodies = set()
        for token in WRONG.values():
            found = await refusals(gateway.ask, [("authorization", f"Bearer {token()}")])
            check(found, "invalid_token")
            bodies |= {reply.body for _, _, reply in found}

        assert len(bodies) == 1
        assert backend.requests == []


MALFORMED: dict[str, Callable[[], list[str]]] = {
    "two good ones": lambda: [f"Bearer {good()}", f"Bearer {good()}"],
    "a good one and nothing": lambda: [f"Bearer {good()}", ""],
    "two in one": lambda: [f"Bearer {good()}, Bearer {good()}"],
    "basic": lambda: ["Basic dXNlcjpwYXNz"],
    "no scheme": lambda: [good()],
    "no token": lambda: ["Bearer"],
    "blank": lambda: ["Bearer  "],
    "too long": lambda: ["Bearer " + "a" * 20_000],
    "strange characters": lambda: ["Bearer é'; DROP TABLE calls; --"],
}


@pytest.mark.parametrize("values", MALFORMED.values(), ids=MALFORMED)
async def test_headers_that_are_not_one_bearer_token_are_refused_on_every_route(values: Any, tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, backend):
        check(await refusals(gateway.ask, [("authorization", value) for value in values()]), "invalid_request")
        assert backend.requests == []


async def test_tokens_elsewhere_than_in_the_header_count_as_none(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, backend):
        token = good()
        check(await refusals(gateway.ask, []), None)
        check(await refusals(gateway.ask, [], f"?access_token={token}&token={token}"), None)
        others = [("cookie", f"access_token={token}"), ("x-api-key", token), ("proxy-authorization", f"Bearer {token}")]
        check(await refusals(gateway.ask, others), None)
        assert backend.requests == []


async def test_good_tokens_of_both_keys_and_of_the_list_are_let_in(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, backend):
        curve = signed(now_claims(), key=P256, algorithm="ES256", kid="curve")
        for token in (good(), curve, BOT.token):
            caller = Caller(gateway.ask, token)
            assert (await caller.modern_call("desk", "echo", {"text": "x"})).status == 200
            assert (await caller.rest_call("desk", "echo", {"text": "x"})).status == 200
        stranger = Caller(gateway.ask, signed(now_claims(groups=["others"])))
        assert (await stranger.modern("desk", "tools/list")).status == 404

        assert len(backend.requests) == 6


async def test_revoked_token_is_refused_from_then_on(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, backend):
        caller = Caller(gateway.ask, signed(now_claims(jti="t1")))
        assert (await caller.rest("GET", "/v1/catalogues")).status == 200
        gateway.running.identities.revoke(token="t1")
        assert (await caller.rest("GET", "/v1/catalogues")).status == 401
        gateway.running.identities.revoke(subject="user:bot")
        assert (await gateway.caller(BOT).rest_call("desk", "echo", {"text": "x"})).status == 401
        assert backend.requests == []


@pytest.mark.parametrize("path", ["", "/mcp", "/desk/mcp"])
async def test_metadata_is_where_the_challenge_points_and_names_the_resource(path: str, tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, _):
        anonymous = gateway.caller(None)
        found = await anonymous.rest("GET", f"/.well-known/oauth-protected-resource{path}")

        assert found.status == 200
        assert found.json == {
            "resource": f"http://localhost{path}",
            "authorization_servers": [ISSUER],
            "bearer_methods_supported": ["header"],
        }
        if path:
            refused = await anonymous.raw("POST", path)
            assert refused.header("www-authenticate") == f"Bearer {metadata_of(path)}"


@pytest.mark.parametrize("path", ["/desk", "/nowhere", "/desk/mcp/", "x", "/../mcp", "/a b/mcp", f"/{'a' * 400}/mcp"])
async def test_there_is_no_metadata_of_what_no_endpoint_is_called(path: str, tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, _):
        found = await gateway.caller(None).rest("GET", f"/.well-known/oauth-protected-resource{path}")

        assert found.status == (401 if path == "x" else 404)
        if found.status == 404:
            assert found.header("content-type") == "application/problem+json"
            assert path.encode() not in found.body


async def test_anonymous_callers_cannot_learn_which_catalogues_there_are(tmp_path: Path) -> None:
    """For a request without a credential, the answers for existing and unknown catalogues differ only by the name."""
    async with gateway_of(tmp_path) as (gateway, _):
        anonymous = gateway.caller(None)
        paths = [
            "/.well-known/oauth-protected-resource/{}/mcp",
            "/.well-known/oauth-protected-resource/{}",
            "/.well-known/oauth-protected-resource/{}/mcp/",
            "/.well-known/oauth-authorization-server/{}/mcp",
            "/.well-known/openid-configuration/{}/mcp",
            "/{}/mcp",
            "/{}",
            "/v1/catalogues/{}",
            "/v1/catalogues/{}/tools",
            "/v1/catalogues/{}/tools/echo/call",
            "/v1/docs/{}",
            "/v1/openapi.json?catalogue={}",
        ]
        for path in paths:
            for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT"):
                there = await anonymous.raw(method, path.format("desk"))
                gone = await anonymous.raw(method, path.format("nope"))

                assert there.status == gone.status, (method, path)
                assert there.body.replace(b"desk", b"nope") == gone.body, (method, path)
                assert str(there.headers).replace("desk", "nope") == str(gone.headers), (method, path)


async def test_client_of_the_first_revision_is_sent_to_the_issuer(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, _):
        found = await gateway.caller(None).rest("GET", "/.well-known/oauth-authorization-server")

        assert (found.status, found.header("location")) == (302, f"{ISSUER}/.well-known/openid-configuration")


# --- places without tokens ---

CANARY = "canarycanarycanary"


def places_with(secrets: list[bytes], folder: Path, texts: dict[str, bytes]) -> list[str]:
    """Return the files and texts that contain one of the secrets."""
    files = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert files, "there is something to look through"
    return [name for name, content in {**files, **texts}.items() if any(secret in content for secret in secrets)]


async def test_no_token_turns_up_anywhere_but_where_it_belongs(tmp_path: Path) -> None:
    wrong = {"agw_wrong" + CANARY, signed(now_claims(aud=CANARY)), f"{CANARY}.{CANARY}.{CANARY}"}
    token, upstream = good(), f"upstream-{CANARY}"
    env = {**environ_of([BOT]), "UPSTREAM": upstream}
    async with start_call_counter() as backend:
        auth = {"scheme": "bearer", "token": {"fromEnv": "UPSTREAM"}}
        url = f"http://127.0.0.1:{backend.port}/echo"
        tool = {"type": "http", "method": "POST", "url": url, "body": {"from": "arguments"}, "auth": auth}
        project = written(tmp_path / "p", backend.port, backend=tool, flags=["writes"])
        texts: dict[str, bytes] = {}
        with start_gateway_process(project, tmp_path / "data", env=env) as gateway:
            async with aiohttp.ClientSession() as session:
                ask = send_http(session, gateway.url)
                replies = [await leave_traces(Caller(ask, each)) for each in (token, BOT.token)]
                replies += [await leave_traces(Caller(ask, each)) for each in sorted(wrong)]
                replies.append([await ask("GET", f"/v1/catalogues?token={token}", [], b"")])
                replies.append([await ask("POST", f"/{token}/mcp", [("authorization", f"Basic {token}")], b"")])
                two = [("authorization", f"Bearer {token}"), ("authorization", f"Bearer {BOT.token}")]
                replies.append([await ask("POST", "/desk/mcp", two, token.encode())])
            backend_heard = repr(backend.requests).encode()
            assert gateway.stop() == 0
            assert gateway.process.stdout is not None
            texts["output"] = (gateway.output + gateway.process.stdout.read()).encode()
        texts |= {f"reply {number}": repr(each).encode() for number, each in enumerate(replies)}

    callers = [each.encode() for each in (token, BOT.token, *wrong)] + [token.split(".")[2].encode()]
    # the challenge repeats the requested path to its caller
    del texts[f"reply {len(replies) - 2}"]
    assert places_with([*callers, upstream.encode()], tmp_path / "data", texts) == []
    assert places_with([*callers], tmp_path / "data", {"backend": backend_heard}) == []
    assert {dict(headers).get("Authorization") for _, headers, _ in backend.requests} == {f"Bearer {upstream}"}


async def leave_traces(caller: Caller) -> list[Reply]:
    """Make every request that leaves a trace: calls, errors, sessions, keys, broken requests."""
    arguments = {"text": "x"}
    replies = [
        await caller.modern_call("desk", "echo", arguments),
        await caller.modern_call("desk", "echo", {"wrong": 1}),
        await caller.modern_call("desk", "nothing", {}),
        await caller.legacy("desk", "initialize", {"protocolVersion": "2025-11-25"}),
        await caller.rest_call("desk", "echo", arguments, idempotency_key="k"),
        await caller.rest("POST", "/v1/turns", {"catalogue": "desk"}),
        await caller.raw("POST", "/desk/mcp", b"{broken", content_type="application/json"),
        await caller.raw("POST", "/v1/turns", b"{broken", content_type="application/json"),
        await caller.rest("GET", "/v1/calls"),
    ]
    return replies


# --- a real issuer and a real process ---


async def test_token_of_a_real_issuer_opens_a_real_gateway(server: Issuer, tmp_path: Path) -> None:
    with anyio.fail_after(60):
        found = await server.discovery()
        provider = jwt_provider(
            issuer=found["issuer"],
            audience=[GATEWAY],
            keys={"fromUrl": found["jwks_uri"]},
            subject={"claim": "client_id", "prefix": "agent:"},
            roles={"claim": "groups", "map": {"eng-all": "role:member"}},
            tenant={"claim": "tenant"},
        )
        token, elsewhere = await server.token(), await server.token("https://other.example.com/mcp")
        async with start_call_counter() as backend:
            project = written(tmp_path / "p", backend.port, provider)
            with start_gateway_process(project, tmp_path / "data", env=environ_of([BOT])) as gateway:
                async with aiohttp.ClientSession() as session:
                    ask = send_http(session, gateway.url)
                    refused = await ask("POST", "/desk/mcp", [], b"")
                    where = re.search(r'resource_metadata="([^"]+)"', refused.header("www-authenticate") or "")
                    assert where is not None
                    async with session.get(where[1]) as answer:
                        assert (await answer.json())["authorization_servers"] == [found["issuer"]]

                    assert (await Caller(ask, token).modern_call("desk", "echo", {"text": "x"})).status == 200
                    assert (await Caller(ask, token).rest_call("desk", "echo", {"text": "x"})).status == 200
                    assert (await Caller(ask, elsewhere).modern("desk", "tools/list")).status == 401
                    assert len(backend.requests) == 2
