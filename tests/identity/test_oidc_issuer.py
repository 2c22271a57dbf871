"""A real issuer: a certified OpenID Connect server issues tokens, and the gateway identifies their owners.

Needs Node and npm; the library is installed once, pinned by hashes, into the user's cache folder.
"""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import aiohttp
import anyio
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from gateway.errors import Unauthenticated
from gateway.identity.authenticator import Authenticator
from gateway.identity.provider_settings import JwtProvider, UrlKeySettings
from gateway.model.caller import Principal
from tests.identity.token_samples import OTHER_RSA, P256, RSA, FakeClock, bearer, encoded, started

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent / "oidc"
GATEWAY = "https://gateway.example.com/mcp"
CALLER = Principal("agent:release-bot", frozenset({"role:engineer"}), "acme")


def installed_library() -> Path:
    """The folder with the library. Skips the test if it cannot be installed."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    lock = (HERE / "package-lock.json").read_bytes()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "agent-gateway-tests" / f"oidc-{sha256(lock).hexdigest()[:16]}"
    if not folder.exists():
        install(folder)
    return folder


def install(folder: Path) -> None:
    """Install into a temporary folder and move it, so that another run never finds half of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(mkdtemp(dir=folder.parent))
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, made)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        subprocess.run(command, cwd=made, check=True, capture_output=True, text=True, timeout=180)
        made.rename(folder)
    except (subprocess.SubprocessError, OSError) as error:
        shutil.rmtree(made, ignore_errors=True)
        if not folder.exists():
            pytest.skip(f"the issuer's library cannot be installed: {type(error).__name__}")


class Issuer:
    """The running process. Its keys can be replaced, as issuers do."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = ""

    def use(self, key: RSAPrivateKey, kid: str) -> None:
        keys = [
            {**RSAAlgorithm.to_jwk(key, as_dict=True), "kid": kid},
            {**ECAlgorithm.to_jwk(P256, as_dict=True), "kid": "curve"},
        ]
        for private in keys:
            private.pop("key_ops", None)  # the issuer would publish it unchanged; `sign` is not for public keys
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"keys": keys}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        while line and not line.startswith("issuer "):
            line = self._process.stdout.readline()
        assert line, "the issuer ended"
        self.url = line.split()[1]

    async def discovery(self) -> dict[str, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/.well-known/openid-configuration") as answer,
        ):
            found: dict[str, Any] = await answer.json()
            return found

    async def token(self, resource: str = GATEWAY) -> str:
        """Get an access token with the client credentials grant."""
        endpoint = (await self.discovery())["token_endpoint"]
        headers = {"Authorization": aiohttp.encode_basic_auth("release-bot", "a-secret-for-tests")}
        form = {"grant_type": "client_credentials", "resource": resource}
        async with aiohttp.ClientSession() as session, session.post(endpoint, data=form, headers=headers) as answer:
            body = await answer.json()
            assert answer.status == 200, body
            return str(body["access_token"])

    async def provider(self) -> JwtProvider:
        found = await self.discovery()
        return JwtProvider(
            issuer=found["issuer"],
            audience=frozenset({GATEWAY, f"{GATEWAY}/es"}),
            algorithms=frozenset({"RS256", "ES256"}),
            keys=UrlKeySettings(found["jwks_uri"]),
            subject_claim="client_id",
            subject_prefix="agent:",
            role_claim="groups",
            roles={"eng-all": "role:engineer"},
            tenant_claim="tenant",
        )


@pytest.fixture
def server() -> Iterator[Issuer]:
    command = ["node", str(HERE / "issuer.mjs"), str(installed_library())]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        issuer = Issuer(process)
        issuer.use(RSA, "k1")
        yield issuer
        process.terminate()


def real_clock() -> FakeClock:
    """Starts at the current time, like the issuer's clock."""
    return FakeClock(datetime.now(UTC))


def claims_of(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return found


async def reason_of(identities: Authenticator, token: str) -> str:
    with pytest.raises(Unauthenticated) as refusal:
        await identities.authenticate(bearer(token))
    return refusal.value.reason


@pytest.mark.parametrize("resource", [GATEWAY, f"{GATEWAY}/es"], ids=["RS256", "ES256"])
async def test_token_of_a_real_issuer_is_accepted(resource: str, server: Issuer) -> None:
    with anyio.fail_after(30):
        token = await server.token(resource)

        async with started([await server.provider()], real_clock()) as identities:
            assert await identities.authenticate(bearer(token)) == CALLER


async def test_token_for_another_resource_is_refused(server: Issuer) -> None:
    with anyio.fail_after(30):
        token = await server.token("https://other.example.com/mcp")

        async with started([await server.provider()], real_clock()) as identities:
            assert await reason_of(identities, token) == "audience"


async def test_expired_token_is_refused(server: Issuer) -> None:
    clock = real_clock()
    with anyio.fail_after(30):
        token = await server.token()

        async with started([await server.provider()], clock) as identities:
            await identities.authenticate(bearer(token))
            clock.passes(seconds=340)
            assert await reason_of(identities, token) == "expired"


async def test_revoked_token_is_refused_and_others_of_the_client_are_not(server: Issuer) -> None:
    with anyio.fail_after(30):
        token, other = await server.token(), await server.token()
        token_id = claims_of(token)["jti"]

        async with started([await server.provider()], real_clock()) as identities:
            await identities.authenticate(bearer(token))
            identities.revoke(token=token_id)
            assert await reason_of(identities, token) == "revoked"
            assert await identities.authenticate(bearer(other)) == CALLER


async def test_tampered_token_is_refused(server: Issuer) -> None:
    with anyio.fail_after(30):
        token = await server.token()
        header, _, signature = token.split(".")
        forged = encoded(json.dumps({**claims_of(token), "client_id": "root"}).encode())

        async with started([await server.provider()], real_clock()) as identities:
            assert await reason_of(identities, f"{header}.{forged}.{signature}") == "signature"


async def test_issuer_that_changes_its_keys_is_followed(server: Issuer) -> None:
    clock = real_clock()
    with anyio.fail_after(30):
        old = await server.token()

        async with started([await server.provider()], clock) as identities:
            await identities.authenticate(bearer(old))
            server.use(OTHER_RSA, "k2")
            new = await server.token()
            clock.passes(seconds=10)

            assert await identities.authenticate(bearer(new)) == CALLER
            assert await reason_of(identities, old) == "unknown-key"
