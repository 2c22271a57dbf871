"""Signed tokens: accepted ones, and every way to write one that is refused."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Unauthenticated
from gateway.identity.credentials import MAX_CREDENTIAL, principal_from_claims
from gateway.model.caller import Principal
from tests.identity.token_samples import (
    AUDIENCE,
    ED25519,
    ISSUER,
    NOW,
    OTHER_RSA,
    P256,
    P384,
    P521,
    RSA,
    SECONDS,
    FakeClock,
    PrivateKey,
    bearer,
    claims,
    encoded,
    issuer,
    jwk,
    key_file,
    sign_raw,
    signed,
    signed_with_the_public_key_as_a_secret,
    started,
)

pytestmark = pytest.mark.anyio

HEADER = b'{"alg":"RS256","kid":"k1"}'


def tampered() -> str:
    header, _, signature = signed(claims()).split(".")
    return f"{header}.{encoded(json.dumps(claims(sub='mallory')).encode())}.{signature}"


def stripped() -> str:
    header, payload, _ = signed(claims()).split(".")
    return f"{header}.{payload}."


def resigned_last_character() -> str:
    """The same signature to a lenient decoder: the last character of 256 bytes carries four unused bits."""
    token = signed(claims())
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return token[:-1] + alphabet[alphabet.index(token[-1]) ^ 1]


def unsigned(algorithm: str = "none") -> str:
    header = json.dumps({"alg": algorithm, "kid": "k1"}).encode()
    return f"{encoded(header)}.{encoded(json.dumps(claims()).encode())}."


def written(payload: bytes, header: bytes = HEADER) -> str:
    return sign_raw(header, payload)


BAD: dict[str, tuple[str, str]] = {
    "opaque": ("an-opaque-text", "unknown-token"),
    "two segments": ("e30.e30", "unknown-token"),
    "encrypted form": ("e30.e30.e30.e30.e30", "unknown-token"),
    "empty segments": ("..", "unreadable"),
    "header is no base64": (f"a.{encoded(b'{}')}.AA", "unreadable"),
    "header in another alphabet": ("~~~~.e30.AA", "unreadable"),
    "header is no JSON": (written(b"{}", header=b"alg"), "unreadable"),
    "header is a list": (written(b"{}", header=b"[]"), "unreadable"),
    "payload is no JSON": (written(b"hello"), "unreadable"),
    "payload is text": (written(b'"hello"'), "unreadable"),
    "payload is not UTF-8": (written(b'{"sub":"\xff"}'), "unreadable"),
    "payload with a byte order mark": (written(b"\xef\xbb\xbf{}"), "unreadable"),
    "payload with NaN": (written(b'{"exp":NaN}'), "unreadable"),
    "payload nested deeply": (written(b"[" * 11_000), "unreadable"),
    "duplicate claim": (written(b'{"sub":"ada","sub":"root"}'), "unreadable"),
    "duplicate claim further down": (written(b'{"a":[{"b":1,"b":2}]}'), "unreadable"),
    "duplicate header": (written(b"{}", header=b'{"alg":"RS256","alg":"none","kid":"k1"}'), "unreadable"),
    "no issuer": (signed(claims(iss=None)), "unknown-issuer"),
    "other issuer": (signed(claims(iss="https://evil.example.com")), "unknown-issuer"),
    "issuer with a slash more": (signed(claims(iss=ISSUER + "/")), "unknown-issuer"),
    "issuer in capitals": (signed(claims(iss=ISSUER.upper())), "unknown-issuer"),
    "issuers in a list": (signed(claims(iss=[ISSUER])), "unknown-issuer"),
    "algorithm none": (unsigned(), "algorithm"),
    "algorithm NONE": (unsigned("nOnE"), "algorithm"),
    "algorithm missing": (written(json.dumps(claims()).encode(), header=b'{"kid":"k1"}'), "algorithm"),
    "algorithm in a list": (
        written(json.dumps(claims()).encode(), header=b'{"alg":["RS256"],"kid":"k1"}'),
        "algorithm",
    ),
    "public key as a shared secret": (signed_with_the_public_key_as_a_secret(claims()), "algorithm"),
    "algorithm that is not pinned": (signed(claims(), algorithm="RS512"), "algorithm"),
    "signature stripped": (stripped(), "signature"),
    "payload tampered": (tampered(), "signature"),
    "signature written differently": (resigned_last_character(), "signature"),
    "signed by somebody else": (signed(claims(), key=OTHER_RSA), "signature"),
    "no kid": (signed(claims(), kid=None), "header"),
    "kid is a number": (written(json.dumps(claims()).encode(), header=b'{"alg":"RS256","kid":1}'), "header"),
    "unknown kid": (signed(claims(), kid="k9"), "unknown-key"),
    "empty kid": (signed(claims(), kid=""), "unknown-key"),
    "kid of a file": (signed(claims(), kid="../../../../dev/null"), "unknown-key"),
    "kid of a URL": (signed(claims(), kid="https://evil.example.com/jwks"), "unknown-key"),
    "kid of a query": (signed(claims(), kid="k1' OR '1'='1"), "unknown-key"),
    "kid with a null byte": (signed(claims(), kid="k1\0"), "unknown-key"),
    "kid of a key of another type": (signed(claims(), kid="curve"), "key-type"),
    "critical extension": (signed(claims(), crit=["exp"], exp=1), "header"),
    "empty list of extensions": (signed(claims(), crit=[]), "header"),
    "unencoded payload": (written(json.dumps(claims()).encode(), HEADER[:-1] + b',"b64":false}'), "header"),
    "key inside": (signed(claims(), jwk=jwk(OTHER_RSA, "k1"), key=OTHER_RSA), "header"),
    "key elsewhere": (signed(claims(), jku="https://evil.example.com/jwks"), "header"),
    "certificate elsewhere": (signed(claims(), x5u="https://evil.example.com/x5u"), "header"),
    "certificate inside": (signed(claims(), x5c=["AAAA"]), "header"),
    "other type": (signed(claims(), typ="logout+jwt"), "header"),
    "type is a list": (signed(claims(), typ=["JWT"]), "header"),
    "no audience": (signed(claims(aud=None)), "audience"),
    "other audience": (signed(claims(aud="another-gateway")), "audience"),
    "audience in capitals": (signed(claims(aud=AUDIENCE.upper())), "audience"),
    "part of an audience": (signed(claims(aud=f"{AUDIENCE} another-gateway")), "audience"),
    "two other audiences": (signed(claims(aud=["one", "two"])), "audience"),
    "no audience in the list": (signed(claims(aud=[])), "audience"),
    "odd audience beside ours": (signed(claims(aud=[AUDIENCE, 7])), "audience"),
    "nested audience": (signed(claims(aud={"value": AUDIENCE})), "audience"),
    "expired": (signed(claims(exp=SECONDS - 31)), "expired"),
    "expired to the second": (signed(claims(exp=SECONDS - 30)), "expired"),
    "no exp": (signed(claims(exp=None)), "times"),
    "exp is text": (signed(claims(exp=str(SECONDS + 300))), "times"),
    "exp is true": (signed(claims(exp=True)), "times"),
    "exp is negative": (signed(claims(exp=-1)), "times"),
    "exp without end": (written(json.dumps(claims()).replace(str(SECONDS + 300), "1e999").encode()), "times"),
    "exp too large for a float": (signed(claims(exp=10**400)), "times"),
    "exp past all calendars": (signed(claims(exp=10**17)), "times"),
    "exp in a list": (signed(claims(exp=[SECONDS + 300])), "times"),
    "nbf in the future": (signed(claims(nbf=SECONDS + 31)), "not-yet-valid"),
    "nbf is text": (signed(claims(nbf="now")), "times"),
    "iat in the future": (signed(claims(iat=SECONDS + 31)), "not-yet-valid"),
    "iat is an object": (signed(claims(iat={})), "times"),
    "no subject": (signed(claims(sub=None)), "subject"),
    "empty subject": (signed(claims(sub="")), "subject"),
    "subject is a number": (signed(claims(sub=7)), "subject"),
    "subject is nested": (signed(claims(sub={"name": "ada"})), "subject"),
    "subject with a space": (signed(claims(sub="ada lovelace")), "subject"),
    "subject with a line more": (signed(claims(sub="ada\n")), "subject"),
    "subject with a star": (signed(claims(sub="*")), "subject"),
    "subject that only looks like another": (signed(claims(sub="аda")), "subject"),
    "subject without end": (signed(claims(sub="a" * 257)), "subject"),
}

GOOD: dict[str, tuple[PrivateKey, str]] = {
    "RS256": (RSA, "k1"),
    "RS384": (RSA, "k1"),
    "RS512": (RSA, "k1"),
    "PS256": (RSA, "k1"),
    "PS384": (RSA, "k1"),
    "PS512": (RSA, "k1"),
    "ES256": (P256, "p256"),
    "ES384": (P384, "p384"),
    "ES512": (P521, "p521"),
    "EdDSA": (ED25519, "ed"),
}


@pytest.mark.parametrize(("token", "reason"), BAD.values(), ids=BAD)
async def test_bad_token_is_refused_for_what_is_wrong_with_it(token: str, reason: str, tmp_path: Path) -> None:
    provider = issuer(key_file(tmp_path, jwk(RSA, "k1"), jwk(P256, "curve")), algorithms=frozenset({"RS256", "ES256"}))

    async with started([provider], FakeClock()) as identities:
        with pytest.raises(Unauthenticated) as refusal:
            await identities.authenticate(bearer(token))

    assert (refusal.value.error, refusal.value.reason) == ("invalid_token", reason)
    assert refusal.value.message == "the credential is not valid here"


@pytest.mark.parametrize("algorithm", GOOD)
async def test_token_of_every_algorithm_is_accepted(algorithm: str, tmp_path: Path) -> None:
    key, kid = GOOD[algorithm]
    provider = issuer(key_file(tmp_path, jwk(key, kid)), algorithms=frozenset({algorithm}))

    async with started([provider], FakeClock()) as identities:
        caller = await identities.authenticate(bearer(signed(claims(), key=key, algorithm=algorithm, kid=kid)))

    assert caller == Principal("user:ada")


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(signed(claims(aud=[AUDIENCE])), id="our audience in a list"),
        pytest.param(signed(claims(aud=["another", AUDIENCE])), id="our audience beside another"),
        pytest.param(signed(claims(exp=SECONDS - 29)), id="expired within the skew"),
        pytest.param(signed(claims(exp=SECONDS + 0.5)), id="exp is a fraction"),
        pytest.param(signed(claims(exp=1 << 53)), id="exp is far away"),
        pytest.param(signed(claims(nbf=SECONDS + 30, iat=SECONDS + 30)), id="not yet valid within the skew"),
        pytest.param(signed(claims(iat=None, jti=None)), id="neither iat nor jti"),
        pytest.param(signed(claims(jti=7)), id="odd jti"),
        pytest.param(signed(claims(), typ="at+jwt"), id="access token"),
        pytest.param(signed(claims(), typ="application/AT+JWT"), id="access token in full"),
        pytest.param(written(json.dumps(claims()).encode()), id="no type"),
        pytest.param(signed(claims(), x5t="thumb"), id="thumbprint in the header"),
    ],
)
async def test_unusual_but_good_token_is_accepted(token: str, tmp_path: Path) -> None:
    async with started([issuer(key_file(tmp_path))], FakeClock()) as identities:
        assert await identities.authenticate(bearer(token)) == Principal("user:ada")


async def test_giant_token_is_refused_before_it_is_read(tmp_path: Path) -> None:
    token = signed(claims(padding="x" * MAX_CREDENTIAL))

    async with started([issuer(key_file(tmp_path))], FakeClock()) as identities:
        with pytest.raises(Unauthenticated) as refusal:
            await identities.authenticate(bearer(token))

    assert refusal.value.error == "invalid_request"


async def test_token_is_good_for_the_provider_whose_audience_it_names(tmp_path: Path) -> None:
    keys = key_file(tmp_path)
    people = issuer(keys, audience=frozenset({"people"}))
    agents = issuer(keys, audience=frozenset({"agents"}), subject_prefix="agent:")

    async with started([people, agents], FakeClock()) as identities:
        assert await identities.authenticate(bearer(signed(claims(aud="people")))) == Principal("user:ada")
        assert await identities.authenticate(bearer(signed(claims(aud="agents")))) == Principal("agent:ada")


async def test_token_of_one_issuer_is_not_verified_with_keys_of_another(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ours = issuer(key_file(tmp_path, jwk(RSA, "k1")))
    other = issuer(key_file(tmp_path / "other", jwk(OTHER_RSA, "k2")), issuer="https://other.example.com")

    async with started([ours, other], FakeClock()) as identities:
        with pytest.raises(Unauthenticated) as refusal:
            await identities.authenticate(bearer(signed(claims(), key=OTHER_RSA, kid="k2")))

    assert refusal.value.reason == "unknown-key"


async def test_claims_are_held_to_the_issuer_whose_keys_signed_them(tmp_path: Path) -> None:
    with pytest.raises(Unauthenticated) as refusal:
        principal_from_claims(claims(iss="https://other.example.com"), issuer(key_file(tmp_path)), now=NOW, digest="")

    assert refusal.value.reason == "unknown-issuer"


ROLES = {"eng-all": "role:engineer", "sre-oncall": "role:sre"}


GROUPS: dict[str, tuple[Any, set[str]]] = {
    "list": (["eng-all", "sre-oncall"], {"role:engineer", "role:sre"}),
    "text": ("eng-all", {"role:engineer"}),
    "repeated and unlisted": (["eng-all", "eng-all", "unlisted"], {"role:engineer"}),
    "two in one text": ("eng-all sre-oncall", set()),
    "a role instead of a group": ("role:engineer", set()),
    "capitals": ("ENG-ALL", set()),
    "empty list": ([], set()),
    "missing": (None, set()),
    "number": (7, set()),
    "true": (True, set()),
    "object": ({"eng-all": True}, set()),
    "nested beside a good one": ([["eng-all"], {"name": "eng-all"}, None, 7, "sre-oncall"], {"role:sre"}),
    "odd characters": (["eng-all\0", "\ud800"], set()),
}


@pytest.mark.parametrize(("groups", "roles"), GROUPS.values(), ids=GROUPS)
async def test_groups_become_roles_only_by_the_map(groups: Any, roles: set[str], tmp_path: Path) -> None:
    provider = issuer(key_file(tmp_path), role_claim="groups", roles=ROLES)

    async with started([provider], FakeClock()) as identities:
        caller = await identities.authenticate(bearer(signed(claims(groups=groups))))

    assert caller == Principal("user:ada", frozenset(roles))


async def test_claims_named_like_roles_grant_nothing_without_a_map(tmp_path: Path) -> None:
    async with started([issuer(key_file(tmp_path), roles=ROLES)], FakeClock()) as identities:
        caller = await identities.authenticate(bearer(signed(claims(groups="eng-all", roles=["role:sre"], scope="*"))))

    assert caller == Principal("user:ada")


async def test_subject_and_tenant_come_from_the_claims_that_are_named(tmp_path: Path) -> None:
    provider = issuer(
        key_file(tmp_path), subject_claim="azp", subject_prefix="service:", tenant_claim="https://example.com/tenant"
    )

    async with started([provider], FakeClock()) as identities:
        token = signed(claims(azp="repo:acme/web:ref:refs/heads/main", **{"https://example.com/tenant": "acme"}))
        caller = await identities.authenticate(bearer(token))

    assert caller == Principal("service:repo:acme/web:ref:refs/heads/main", frozenset(), "acme")


@pytest.mark.parametrize("tenant", [None, "", "a/b", 7, ["acme"], "acme\n"], ids=repr)
async def test_token_without_a_legal_tenant_is_refused_where_one_is_asked_for(tenant: Any, tmp_path: Path) -> None:
    provider = issuer(key_file(tmp_path), tenant_claim="tenant")

    async with started([provider], FakeClock()) as identities:
        with pytest.raises(Unauthenticated) as refusal:
            await identities.authenticate(bearer(signed(claims(tenant=tenant))))

    assert refusal.value.reason == "tenant"


async def test_provider_without_skew_takes_times_literally(tmp_path: Path) -> None:
    clock = FakeClock(NOW)
    provider = issuer(key_file(tmp_path), clock_skew=NOW - NOW)

    async with started([provider], clock) as identities:
        clock.passes(seconds=299)
        await identities.authenticate(bearer(signed(claims())))
        clock.passes(seconds=1)
        with pytest.raises(Unauthenticated) as refusal:
            await identities.authenticate(bearer(signed(claims())))

    assert refusal.value.reason == "expired"


GOOD_TOKEN = signed(claims())
ES256_TOKEN = signed(claims(), key=P256, algorithm="ES256", kid="curve")


@given(st.sampled_from([GOOD_TOKEN, ES256_TOKEN]), st.data())
async def test_token_with_one_other_character_is_refused(token: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("ABCXYZabcxyz0189-_.~+/").filter(lambda character: character != token[place]))
    changed = token[:place] + other + token[place + 1 :]

    with TemporaryDirectory() as folder:
        keys = key_file(Path(folder), jwk(RSA, "k1"), jwk(P256, "curve"))
        async with started([issuer(keys, algorithms=frozenset({"RS256", "ES256"}))], FakeClock()) as identities:
            with pytest.raises(Unauthenticated):
                await identities.authenticate(bearer(changed))
