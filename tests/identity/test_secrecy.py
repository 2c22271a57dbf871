"""No principal is invented, and no part of a credential appears in errors, logs or the repr of an object."""

import ast
import io
import logging
import traceback
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway.identity
from gateway.errors import Unauthenticated
from gateway.identity.authenticator import Authenticator, build_challenge
from gateway.identity.credentials import ApiTokens, CredentialCache, VerifiedCredential, parse_jwt
from gateway.identity.provider_settings import AnonymousProvider, ApiToken, TokenProvider, UrlKeySettings
from gateway.model.caller import Principal
from tests.identity.test_signed_tokens import BAD
from tests.identity.token_samples import (
    OTHER_RSA,
    SECONDS,
    FakeClock,
    KeyServer,
    bearer,
    claims,
    encoded,
    issuer,
    key_file,
    serving,
    sign_raw,
    signed,
    started,
)

pytestmark = pytest.mark.anyio

PACKAGE = Path(str(gateway.identity.__file__)).parent
CANARY = "canary7f3a"
HEADER = b'{"alg":"RS256","kid":"canary7f3a"}'

LEAKS = {
    "opaque": CANARY,
    "header": f'Basic {CANARY}"',
    "no JSON": sign_raw(HEADER, b"canary7f3a"),
    "not UTF-8": sign_raw(HEADER, b'"canary7f3a\xff'),
    "duplicate claim": sign_raw(HEADER, b'{"canary7f3a":1,"canary7f3a":"canary7f3a"}'),
    "issuer": signed(claims(iss=CANARY)),
    "algorithm": sign_raw(b'{"alg":"canary7f3a","kid":"k1"}', b'{"iss":"https://login.example.com"}'),
    "key": signed(claims(), kid=CANARY),
    "type": signed(claims(), typ=CANARY),
    "signature": signed(claims(sub=CANARY), key=OTHER_RSA),
    "audience": signed(claims(aud=[CANARY])),
    "expired": signed(claims(sub=CANARY, exp=SECONDS - 100)),
    "times": signed(claims(exp=CANARY)),
    "subject": signed(claims(sub=f"{CANARY} {CANARY}")),
    "tenant": signed(claims(tenant=f"{CANARY}/{CANARY}")),
    "revoked": signed(claims(jti=CANARY, tenant="acme")),
}


def describe_error(error: BaseException | None) -> str:
    """The error, its attributes, and all errors that it references."""
    if error is None:
        return ""
    shown = "".join(traceback.format_exception(error, limit=0))
    own = f"{error!r} {error!s} {error.args!r} {vars(error)!r} {shown}"
    return own + describe_error(error.__cause__) + describe_error(error.__context__)


@pytest.mark.parametrize("credential", LEAKS.values(), ids=LEAKS)
async def test_refusal_holds_nothing_of_the_credential(
    credential: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    provider = issuer(key_file(tmp_path), tenant_claim="tenant")

    async with started([provider], FakeClock()) as identities:
        identities.revoke(token=CANARY)
        with pytest.raises(Unauthenticated) as refusal:
            await identities.authenticate(bearer(credential))

    shown = describe_error(refusal.value) + build_challenge(None, refusal.value).decode() + repr(identities)
    pieces = [CANARY, encoded(CANARY.encode())[:12], *credential.split(".")[:2]]
    assert [piece for piece in pieces if piece and piece in shown + caplog.text] == []


async def test_outage_shows_nothing_of_the_credential(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = KeyServer()
    server.body = CANARY.encode()

    async with serving(server), started([issuer(UrlKeySettings(server.url))], FakeClock()) as identities:
        with pytest.raises(Unauthenticated) as refusal:
            await identities.authenticate(bearer(signed(claims(sub=CANARY), kid=CANARY)))

    assert "are not renewed" in caplog.text
    assert CANARY not in caplog.text.replace(server.url, "") + describe_error(refusal.value)


async def test_objects_on_the_way_show_nothing() -> None:
    token = ApiToken("c" * 64, "agent:bot", date(2027, 1, 1))
    admission = VerifiedCredential(Principal(f"user:{CANARY}"), FakeClock().now, frozenset({CANARY}))
    admissions = CredentialCache()
    admissions.put(b"digest", admission, now=FakeClock().now)
    shown = io.StringIO()

    for value in (token, ApiTokens([token]), admission, admissions, parse_jwt(signed(claims(sub=CANARY)).encode())):
        print(repr(value), str(value), file=shown)

    assert CANARY not in shown.getvalue()
    assert "c" * 64 not in shown.getvalue()


async def test_callers_cannot_distinguish_refused_tokens(tmp_path: Path) -> None:
    shown = set()

    async with started([issuer(key_file(tmp_path))], FakeClock()) as identities:
        for token, _ in BAD.values():
            with pytest.raises(Unauthenticated) as refusal:
                await identities.authenticate(bearer(token))
            error = refusal.value
            shown.add((str(error), error.message, error.help, error.status, build_challenge(None, error)))

    assert len(shown) == 1


def principals_made() -> dict[str, int]:
    """How often each module creates a principal, under any name it could have been imported as."""
    found: dict[str, int] = {}
    for module in sorted(PACKAGE.glob("*.py")):
        tree = ast.parse(module.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and "Principal" in ast.dump(node.func)]
        if calls:
            found[module.name] = len(calls)
    return found


def test_principal_is_made_from_verified_claims_a_listed_token_or_declared_as_anonymous() -> None:
    assert principals_made() == {"authenticator.py": 1, "credentials.py": 2}
    assert all(
        "import Principal as" not in path.read_text(encoding="utf-8")
        and "replace(" not in path.read_text(encoding="utf-8")
        for path in PACKAGE.glob("*.py")
    )


def test_claims_are_believed_in_one_place_and_only_behind_the_signature() -> None:
    source = (PACKAGE / "credentials.py").read_text(encoding="utf-8")
    users = [path.name for path in PACKAGE.glob("*.py") if "principal_from_claims" in path.read_text(encoding="utf-8")]

    assert users == ["credentials.py"]
    assert source.count("principal_from_claims(") == 2, "its definition and one use"
    assert source.index("key.verify(") < source.index("return principal_from_claims(")


@given(st.binary(max_size=200) | st.builds(b"Bearer ".__add__, st.binary(max_size=200)))
async def test_whatever_is_sent_is_refused_and_nothing_else_happens(header: bytes) -> None:
    identities = Authenticator([AnonymousProvider("user:local"), TokenProvider(())], FakeClock())

    with pytest.raises(Unauthenticated):
        await identities.authenticate(header)


json_texts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
odd_claims = st.dictionaries(
    st.sampled_from(["aud", "sub", "exp", "nbf", "iat", "jti", "groups", "tenant"]), json_texts, max_size=4
)


@given(odd_claims)
async def test_odd_claims_are_refused_or_grant_what_the_map_declares(odd: dict[str, object]) -> None:
    """Signed by the issuer itself, so that only the claims are in question."""
    with TemporaryDirectory() as folder:
        provider = issuer(key_file(Path(folder)), role_claim="groups", roles={"eng": "role:engineer"})
        async with started([provider], FakeClock()) as identities:
            try:
                caller = await identities.authenticate(bearer(signed({**claims(), **odd})))
            except Unauthenticated:
                return

    assert caller.subject.startswith("user:")
    assert caller.roles <= {"role:engineer"}
    assert caller.tenant is None
