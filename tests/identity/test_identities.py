"""Identities: the anonymous principal, the cache of one minute, and revocation."""

from datetime import date
from pathlib import Path

import pytest

from gateway.errors import CredentialUnknown, StoreUnavailable, Unauthenticated
from gateway.identity.authenticator import Authenticator
from gateway.identity.credentials import CredentialCache, VerifiedCredential, new_api_token
from gateway.identity.provider_settings import AnonymousProvider, ApiToken, TokenProvider
from gateway.model.caller import Principal
from tests.identity.token_samples import (
    OTHER_RSA,
    RSA,
    SECONDS,
    FakeClock,
    bearer,
    claims,
    issuer,
    jwk,
    key_file,
    signed,
    started,
)

pytestmark = pytest.mark.anyio

ANONYMOUS = AnonymousProvider("user:local", frozenset({"role:engineer"}))
TOKEN, DIGEST = new_api_token()
BOT = TokenProvider((ApiToken(DIGEST, "agent:bot", date(2027, 3, 31)),))


async def refusal_of(identities: Authenticator, header: bytes | None) -> tuple[str | None, str]:
    with pytest.raises(Unauthenticated) as refusal:
        await identities.authenticate(header)
    return refusal.value.error, refusal.value.reason


async def test_request_without_a_credential_is_refused() -> None:
    identities = Authenticator([BOT], FakeClock())

    assert not identities.allows_anonymous
    assert await refusal_of(identities, None) == (None, "no-credential")


async def test_gateway_without_providers_refuses_all_callers() -> None:
    identities = Authenticator([], FakeClock())

    assert await refusal_of(identities, None) == (None, "no-credential")
    assert await refusal_of(identities, b"Bearer abc") == ("invalid_token", "unknown-token")
    assert await refusal_of(identities, bearer(signed(claims()))) == ("invalid_token", "unknown-issuer")


async def test_anonymous_is_a_named_principal() -> None:
    identities = Authenticator([BOT, ANONYMOUS], FakeClock())

    assert identities.allows_anonymous
    assert await identities.authenticate(None) == Principal("user:local", frozenset({"role:engineer"}))
    assert await identities.authenticate(bearer(TOKEN)) == Principal("agent:bot")


@pytest.mark.parametrize(
    "header",
    [b"", b"Bearer", b"Bearer wrong", b"Basic YTpi", bearer(signed(claims()))],
    ids=["empty", "scheme only", "unknown token", "other scheme", "unknown issuer"],
)
async def test_wrong_credential_never_falls_back_to_anonymous(header: bytes) -> None:
    error, _ = await refusal_of(Authenticator([ANONYMOUS, BOT], FakeClock()), header)

    assert error is not None


async def test_repeated_token_is_verified_once_a_minute(tmp_path: Path) -> None:
    clock, header = FakeClock(), bearer(signed(claims()))

    async with started([issuer(key_file(tmp_path))], clock) as identities:
        first = await identities.authenticate(header)
        clock.passes(seconds=59)
        second = await identities.authenticate(header)
        clock.passes(seconds=1)
        third = await identities.authenticate(header)

    assert first is second
    assert third == second
    assert third is not second


async def test_who_is_recalled_was_verified_before() -> None:
    identities, header = Authenticator([BOT], FakeClock()), b"Bearer " + TOKEN.encode()

    assert identities.get_cached(header) is None
    principal = await identities.authenticate(header)
    assert identities.get_cached(header) is principal
    identities.revoke(subject="agent:bot")
    with pytest.raises(Unauthenticated) as refusal:
        identities.get_cached(header)
    assert refusal.value.reason == "revoked"
    with pytest.raises(Unauthenticated):
        identities.get_cached(None)


async def test_token_that_is_revoked_before_its_first_use_is_verified_once(tmp_path: Path) -> None:
    header = bearer(signed(claims()))

    async with started([issuer(key_file(tmp_path))], FakeClock()) as identities:
        identities.revoke(subject="user:ada")
        first = await refusal_of(identities, header)
        with pytest.raises(Unauthenticated) as again:  # without a signature
            identities.get_cached(header)

    assert first == ("invalid_token", "revoked")
    assert again.value.reason == "revoked"


async def test_token_is_not_remembered_past_its_end(tmp_path: Path) -> None:
    clock, header = FakeClock(), bearer(signed(claims(exp=SECONDS + 20)))

    async with started([issuer(key_file(tmp_path), clock_skew=clock.now - clock.now)], clock) as identities:
        await identities.authenticate(header)
        clock.passes(seconds=20)
        refusal = await refusal_of(identities, header)

    assert refusal == ("invalid_token", "expired")


async def test_clock_that_is_set_back_is_not_answered_from_memory(tmp_path: Path) -> None:
    clock, header = FakeClock(), bearer(signed(claims()))

    async with started([issuer(key_file(tmp_path))], clock) as identities:
        await identities.authenticate(header)
        clock.passes(hours=-1)
        refusal = await refusal_of(identities, header)

    assert refusal == ("invalid_token", "not-yet-valid")


async def test_memory_is_bounded_and_drops_the_oldest() -> None:
    clock, admissions = FakeClock(), CredentialCache(capacity=2)
    admission = VerifiedCredential(Principal("user:ada"), clock().replace(year=2030), frozenset())

    for digest in (b"1", b"2", b"1", b"3"):
        admissions.put(digest, admission, now=clock())

    assert len(admissions) == 2
    assert [admissions.get(digest, clock()) is not None for digest in (b"1", b"2", b"3")] == [True, False, True]


async def test_refused_credentials_take_no_memory() -> None:
    identities = Authenticator([BOT], FakeClock())

    for number in range(50):
        await refusal_of(identities, b"Bearer wrong%d" % number)

    assert len(identities._cache) == 0


async def test_revoked_token_is_refused_at_once_and_from_then_on(tmp_path: Path) -> None:
    clock, stolen = FakeClock(), bearer(signed(claims(jti="stolen")))

    async with started([issuer(key_file(tmp_path))], clock) as identities:
        await identities.authenticate(stolen)
        identities.revoke(token="stolen")

        assert await refusal_of(identities, stolen) == ("invalid_token", "revoked")
        assert (await identities.authenticate(bearer(signed(claims(jti="other"))))).subject == "user:ada"
        clock.passes(minutes=2)
        assert await refusal_of(identities, stolen) == ("invalid_token", "revoked")


class Revoked:
    """Tokens revoked in another process; without a list, revocation is unknown."""

    def __init__(self) -> None:
        self.ids: set[str] | None = set()

    def has_revoked(self, token_ids: frozenset[str]) -> bool:
        if self.ids is None:
            raise StoreUnavailable
        return not self.ids.isdisjoint(token_ids)


async def test_token_that_was_revoked_elsewhere_is_refused_on_the_next_request(tmp_path: Path) -> None:
    revoked, stolen = Revoked(), bearer(signed(claims(jti="stolen")))

    async with started([issuer(key_file(tmp_path))], FakeClock()) as identities:
        identities.set_revocations(revoked)
        await identities.authenticate(stolen)
        revoked.ids = {"stolen"}

        assert await refusal_of(identities, stolen) == ("invalid_token", "revoked")
        assert (await identities.authenticate(bearer(signed(claims(jti="other"))))).subject == "user:ada"
        revoked.ids = set()
        assert (await identities.authenticate(stolen)).subject == "user:ada"


async def test_all_callers_are_refused_while_revocations_are_unknown(tmp_path: Path) -> None:
    revoked, valid = Revoked(), bearer(signed(claims(jti="valid")))

    async with started([issuer(key_file(tmp_path))], FakeClock()) as identities:
        identities.set_revocations(revoked)
        await identities.authenticate(valid)
        revoked.ids = None

        for credential in (valid, bearer(signed(claims(jti="new")))):
            with pytest.raises(CredentialUnknown):
                await identities.authenticate(credential)
        assert await refusal_of(identities, bearer("guessed")) == ("invalid_token", "unknown-token")
        assert not identities.can_check_revocations()
        revoked.ids = set()
        assert identities.can_check_revocations()
        assert (await identities.authenticate(valid)).subject == "user:ada"


async def test_revoked_subject_is_refused_with_every_token(tmp_path: Path) -> None:
    async with started([issuer(key_file(tmp_path))], FakeClock()) as identities:
        await identities.authenticate(bearer(signed(claims())))
        identities.revoke(subject="user:ada")

        assert await refusal_of(identities, bearer(signed(claims()))) == ("invalid_token", "revoked")
        assert await refusal_of(identities, bearer(signed(claims(jti="new")))) == ("invalid_token", "revoked")
        assert (await identities.authenticate(bearer(signed(claims(sub="bob"))))).subject == "user:bob"


@pytest.mark.parametrize("written", [DIGEST, DIGEST.upper()], ids=["small letters", "capitals"])
async def test_api_token_is_revoked_by_its_digest(written: str) -> None:
    identities = Authenticator([BOT], FakeClock())
    await identities.authenticate(bearer(TOKEN))

    identities.revoke(token=written)

    assert await refusal_of(identities, bearer(TOKEN)) == ("invalid_token", "revoked")


async def test_anonymous_can_be_revoked() -> None:
    identities = Authenticator([ANONYMOUS], FakeClock())

    identities.revoke(subject="user:local")

    assert await refusal_of(identities, None) == ("invalid_token", "revoked")


async def test_key_that_is_withdrawn_ends_what_is_remembered(tmp_path: Path) -> None:
    clock, header = FakeClock(), bearer(signed(claims()))
    keys = key_file(tmp_path, jwk(RSA, "k1"), jwk(OTHER_RSA, "k2"))

    async with started([issuer(keys)], clock) as identities:
        await identities.authenticate(header)
        key_file(tmp_path, jwk(OTHER_RSA, "k2"))
        clock.passes(seconds=10)
        assert await refusal_of(identities, bearer(signed(claims(), kid="k3"))) == ("invalid_token", "unknown-key")

        assert await refusal_of(identities, header) == ("invalid_token", "unknown-key")
