"""Keys, tokens and clocks for tests about callers: tokens as issuers write them, and malformed ones."""

import base64
import hmac
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWS
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.identity.authenticator import Authenticator
from gateway.identity.provider_settings import FileKeySettings, IdentityProvider, JwtProvider, UrlKeySettings
from tests.support.servers.app_server import serve_aiohttp

ISSUER = "https://login.example.com"
AUDIENCE = "agent-gateway"
NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
SECONDS = int(NOW.timestamp())

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
P256 = ec.generate_private_key(ec.SECP256R1())
P384 = ec.generate_private_key(ec.SECP384R1())
P521 = ec.generate_private_key(ec.SECP521R1())
ED25519 = ed25519.Ed25519PrivateKey.generate()


class FakeClock:
    def __init__(self, now: datetime = NOW) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def passes(self, **duration: float) -> None:
        self.now += timedelta(**duration)


def jwk(key: PrivateKey, kid: str, **members: Any) -> dict[str, Any]:
    """The public half of a key, as an issuer publishes it."""
    return {"kid": kid, "use": "sig", **_public_members(key), **members}


def _public_members(key: PrivateKey) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        return RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)


def jwks(*keys: Mapping[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


def claims(**changes: Any) -> dict[str, Any]:
    """The claims of a good token; a claim changed to `None` is left out."""
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": SECONDS + 300, "iat": SECONDS, "jti": "token-1"}
    return {name: value for name, value in {**usual, **changes}.items() if value is not None}


def signed(
    payload: Mapping[str, Any] | bytes,
    *,
    key: PrivateKey = RSA,
    algorithm: str = "RS256",
    kid: str | None = "k1",
    **header: Any,
) -> str:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    headers = {**({} if kid is None else {"kid": kid}), **header}
    return PyJWS().encode(body, key, algorithm, headers=headers)


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign_raw(header: bytes, payload: bytes, *, key: rsa.RSAPrivateKey = RSA) -> str:
    """A good signature over any bytes, including those that no library would write."""
    signing_input = f"{encoded(header)}.{encoded(payload)}"
    signature = RSAAlgorithm(RSAAlgorithm.SHA256).sign(signing_input.encode(), key)
    return f"{signing_input}.{encoded(signature)}"


def signed_with_the_public_key_as_a_secret(payload: Mapping[str, Any]) -> str:
    """The classic confusion: the public key is public, so any caller could write such a token."""
    secret = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = json.dumps({"alg": "HS256", "typ": "JWT", "kid": "k1"}).encode()
    signing_input = f"{encoded(header)}.{encoded(json.dumps(payload).encode())}"
    return f"{signing_input}.{encoded(hmac.new(secret, signing_input.encode(), sha256).digest())}"


def bearer(token: str) -> bytes:
    return b"Bearer " + token.encode()


def key_file(folder: Path, *keys: Mapping[str, Any]) -> FileKeySettings:
    path = folder / "issuer.jwks.json"
    path.write_bytes(jwks(*(keys or (jwk(RSA, "k1"),))))
    return FileKeySettings(path)


def issuer(keys: FileKeySettings | UrlKeySettings, **changes: Any) -> JwtProvider:
    usual: dict[str, Any] = {
        "issuer": ISSUER,
        "audience": frozenset({AUDIENCE}),
        "algorithms": frozenset({"RS256"}),
        "keys": keys,
    }
    return JwtProvider(**{**usual, **changes})


@asynccontextmanager
async def started(
    providers: Sequence[IdentityProvider], clock: FakeClock, **options: Any
) -> AsyncIterator[Authenticator]:
    identities = Authenticator(providers, clock, **options)
    await identities.start()
    try:
        yield identities
    finally:
        await identities.close()


class KeyServer:
    """An issuer's key address on loopback: it counts requests and gives the configured answer."""

    def __init__(self) -> None:
        self.requests = 0
        self.body = jwks(jwk(RSA, "k1"))
        self.status = 200
        self.headers: dict[str, str] = {}
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        return web.Response(body=self.body, status=self.status, headers=self.headers)


@asynccontextmanager
async def serving(server: KeyServer) -> AsyncIterator[KeyServer]:
    app = web.Application()
    app.router.add_get("/jwks", server.answer)
    async with serve_aiohttp(app) as port:
        server.url = f"http://127.0.0.1:{port}/jwks"
        yield server
