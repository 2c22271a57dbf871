"""API tokens: known by digest, until the end of their last day."""

from datetime import UTC, date, datetime, timedelta
from hashlib import sha256

import pytest

from gateway.errors import InvalidIdentityProvider, Unauthenticated
from gateway.identity.authenticator import Authenticator
from gateway.identity.credentials import new_api_token, parse_bearer_header
from gateway.identity.provider_settings import ApiToken, TokenProvider
from gateway.model.caller import Principal
from tests.identity.token_samples import FakeClock, bearer

pytestmark = pytest.mark.anyio

TOKEN, DIGEST = new_api_token()
LAST_DAY = date(2027, 3, 31)
BOT = ApiToken(DIGEST, "agent:release-bot", LAST_DAY, frozenset({"role:agent"}), "acme")


async def test_listed_token_proves_its_subject() -> None:
    identities = Authenticator([TokenProvider((BOT,))], FakeClock())

    caller = await identities.authenticate(bearer(TOKEN))

    assert caller == Principal("agent:release-bot", frozenset({"role:agent"}), "acme")


async def test_digest_may_be_written_in_capitals() -> None:
    identities = Authenticator([TokenProvider((ApiToken(DIGEST.upper(), "agent:bot", LAST_DAY),))], FakeClock())

    assert await identities.authenticate(bearer(TOKEN)) == Principal("agent:bot")


@pytest.mark.parametrize(
    "credential",
    [new_api_token()[0], DIGEST, TOKEN[:-1], TOKEN + "A", TOKEN.upper(), TOKEN + "="],
    ids=["another token", "the digest itself", "one character less", "one more", "capitals", "padding"],
)
async def test_other_credential_is_refused(credential: str) -> None:
    identities = Authenticator([TokenProvider((BOT,))], FakeClock())

    with pytest.raises(Unauthenticated) as refusal:
        await identities.authenticate(bearer(credential))

    assert (refusal.value.error, refusal.value.reason) == ("invalid_token", "unknown-token")


async def test_token_counts_until_its_last_day_is_over_in_utc() -> None:
    midnight = datetime(2027, 4, 1, tzinfo=UTC)
    clock = FakeClock(midnight - timedelta(microseconds=1))
    identities = Authenticator([TokenProvider((BOT,))], clock)

    assert (await identities.authenticate(bearer(TOKEN))).subject == "agent:release-bot"
    clock.now = midnight
    with pytest.raises(Unauthenticated) as refusal:
        await identities.authenticate(bearer(TOKEN))

    assert refusal.value.reason == "expired"


async def test_last_day_of_the_calendar_is_no_special_case() -> None:
    identities = Authenticator([TokenProvider((ApiToken(DIGEST, "agent:bot", date.max),))], FakeClock())

    assert await identities.authenticate(bearer(TOKEN)) == Principal("agent:bot")


async def test_one_token_for_two_callers_is_refused() -> None:
    twin = ApiToken(DIGEST.upper(), "agent:twin", LAST_DAY)

    with pytest.raises(InvalidIdentityProvider, match=r"'agent:release-bot' and 'agent:twin' have the same token"):
        Authenticator([TokenProvider((BOT,)), TokenProvider((twin,))], FakeClock())


async def test_new_tokens_are_random_and_fit_into_a_header() -> None:
    tokens = {new_api_token() for _ in range(100)}

    assert len(tokens) == 100
    assert {len(token) for token, _ in tokens} == {len("agw_") + 43}
    assert all(digest == sha256(token.encode()).hexdigest() for token, digest in tokens)
    assert all(parse_bearer_header(bearer(token)) == token.encode() for token, _ in tokens)
