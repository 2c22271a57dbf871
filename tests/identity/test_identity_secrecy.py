"""Nobody is made up, and nothing of a credential is told: neither in errors, nor in logs, nor by showing an object."""

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
from test_signed_tokens import BAD
from token_samples import (
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
    signed,
    signed_as_it_stands,
    started,
)

import gateway.identity
from gateway.errors import Unauthenticated
from gateway.governance.principals import Principal
from gateway.identity.admissions import Admission, Admissions
from gateway.identity.api_tokens import ApiTokens
from gateway.identity.challenges import challenge
from gateway.identity.identities import Identities
from gateway.identity.providers import ApiToken, KeysFromUrl, NobodyProvider, TokenProvider
from gateway.identity.signed_tokens import read_signed

pytestmark = pytest.mark.anyio

PACKAGE = Path(str(gateway.identity.__file__)).parent
CANARY = "canary7f3a"
HEADER = b'{"alg":"RS256","kid":"canary7f3a"}'

LEAKS = {
    "opaque": CANARY,
    "header": f'Basic {CANARY}"',
    "no JSON": signed_as_it_stands(HEADER, b"canary7f3a"),
    "not UTF-8": signed_as_it_stands(HEADER, b'"canary7f3a\xff'),
    "duplicate claim": signed_as_it_stands(HEADER, b'{"canary7f3a":1,"canary7f3a":"canary7f3a"}'),
    "issuer": signed(claims(iss=CANARY)),
    "algorithm": signed_as_it_stands(b'{"alg":"canary7f3a","kid":"k1"}', b'{"iss":"https://login.example.com"}'),
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


def everything_about(error: BaseException | None) -> str:
    """The error, its attributes, and all errors it holds on to."""
    if error is None:
        return ""
    shown = "".join(traceback.format_exception(error, limit=0))
    own = f"{error!r} {error!s} {error.args!r} {vars(error)!r} {shown}"
    return own + everything_about(error.__cause__) + everything_about(error.__context__)


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

    told = everything_about(refusal.value) + challenge(None, refusal.value).decode() + repr(identities)
    pieces = [CANARY, encoded(CANARY.encode())[:12], *credential.split(".")[:2]]
    assert [piece for piece in pieces if piece and piece in told + caplog.text] == []


async def test_outage_tells_nothing_of_the_credential(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = KeyServer()
    server.body = CANARY.encode()

    async with serving(server), started([issuer(KeysFromUrl(server.url))], FakeClock()) as identities:
        with pytest.raises(Unauthenticated) as refusal:
            await identities.authenticate(bearer(signed(claims(sub=CANARY), kid=CANARY)))

    assert "are not renewed" in caplog.text
    assert CANARY not in caplog.text.replace(server.url, "") + everything_about(refusal.value)


async def test_objects_on_the_way_show_nothing() -> None:
    token = ApiToken("c" * 64, "agent:bot", date(2027, 1, 1))
    admission = Admission(Principal(f"user:{CANARY}"), FakeClock().now, frozenset({CANARY}))
    admissions = Admissions()
    admissions.remember(b"digest", admission, now=FakeClock().now)
    shown = io.StringIO()

    for value in (token, ApiTokens([token]), admission, admissions, read_signed(signed(claims(sub=CANARY)).encode())):
        print(repr(value), str(value), file=shown)

    assert CANARY not in shown.getvalue()
    assert "c" * 64 not in shown.getvalue()


async def test_callers_cannot_tell_one_refused_token_from_another(tmp_path: Path) -> None:
    told = set()

    async with started([issuer(key_file(tmp_path))], FakeClock()) as identities:
        for token, _ in BAD.values():
            with pytest.raises(Unauthenticated) as refusal:
                await identities.authenticate(bearer(token))
            error = refusal.value
            told.add((str(error), error.message, error.help, error.status, challenge(None, error)))

    assert len(told) == 1


def principals_made() -> dict[str, int]:
    """How often each module makes a principal, by any name it could have been imported under."""
    found: dict[str, int] = {}
    for module in sorted(PACKAGE.glob("*.py")):
        tree = ast.parse(module.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and "Principal" in ast.dump(node.func)]
        if calls:
            found[module.name] = len(calls)
    return found


def test_principal_is_made_from_verified_claims_a_listed_token_or_declared_for_nobody() -> None:
    assert principals_made() == {"api_tokens.py": 1, "claims.py": 1, "identities.py": 1}
    assert all(
        "import Principal as" not in path.read_text(encoding="utf-8")
        and "replace(" not in path.read_text(encoding="utf-8")
        for path in PACKAGE.glob("*.py")
    )


def test_claims_are_believed_in_one_place_and_only_behind_the_signature() -> None:
    source = (PACKAGE / "signed_tokens.py").read_text(encoding="utf-8")
    users = [path.name for path in PACKAGE.glob("*.py") if "identity.claims" in path.read_text(encoding="utf-8")]

    assert users == ["signed_tokens.py"]
    assert source.count("admission(") == 1
    assert source.index("key.verifies(") < source.index("admission(")


@given(st.binary(max_size=200) | st.builds(b"Bearer ".__add__, st.binary(max_size=200)))
async def test_whatever_is_sent_is_refused_and_nothing_else_happens(header: bytes) -> None:
    identities = Identities([NobodyProvider("user:local"), TokenProvider(())], FakeClock())

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
async def test_odd_claims_are_refused_or_grant_what_the_map_says(odd: dict[str, object]) -> None:
    """Signed by the issuer itself, so that the claims are all that is in question."""
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
