"""Providers that must not be declared are refused before any caller is authenticated."""

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import InvalidIdentityProvider
from gateway.identity.provider_settings import ALGORITHMS, ApiToken, FileKeySettings, UrlKeySettings
from tests.identity.token_samples import issuer

KEYS = FileKeySettings(Path("keys.json"))


@pytest.mark.parametrize(
    "url",
    [
        "https://login.example.com/jwks",
        "https://login.example.com:8443/jwks?tenant=a",
        "http://127.0.0.1:9000/jwks",
        "http://127.8.8.8/jwks",
        "http://[::1]:9000/jwks",
        "http://localhost/jwks",
    ],
)
def test_keys_come_over_https_or_from_this_machine(url: str) -> None:
    assert UrlKeySettings(url).url == url


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example.com/jwks",
        "http://127.0.0.1.example.com/jwks",
        "http://localhost.example.com/jwks",
        "http://10.0.0.1/jwks",
        "http://0.0.0.0/jwks",
        "http://[::ffff:10.0.0.1]/jwks",
        "https://ada:secret@login.example.com/jwks",
        "https://@login.example.com/jwks",
        "https:///jwks",
        "https://login.example.com:0/jwks",
        "https://login.example.com:port/jwks",
        "https://[::1/jwks",
        "file:///etc/passwd",
        "ftp://127.0.0.1/jwks",
        "login.example.com/jwks",
        "",
    ],
)
def test_keys_from_anywhere_else_are_refused(url: str) -> None:
    with pytest.raises(InvalidIdentityProvider, match="over https") as refusal:
        UrlKeySettings(url)

    assert "secret" not in f"{refusal.value} {refusal.value.help}"


LOOSE: dict[str, dict[str, Any]] = {
    "no algorithm": {"algorithms": frozenset()},
    "shared secret": {"algorithms": frozenset({"HS256"})},
    "shared secret beside a key": {"algorithms": frozenset({"RS256", "HS512"})},
    "no signature": {"algorithms": frozenset({"none"})},
    "algorithm nobody listed": {"algorithms": frozenset({"ES256K"})},
    "no audience": {"audience": frozenset()},
    "skew of more than a minute": {"clock_skew": timedelta(seconds=61)},
    "negative skew": {"clock_skew": timedelta(seconds=-1)},
}


@pytest.mark.parametrize("changes", LOOSE.values(), ids=LOOSE)
def test_issuer_that_would_let_every_caller_in_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidIdentityProvider) as refusal:
        issuer(KEYS, **changes)

    assert refusal.value.fatal
    assert refusal.value.help


def test_issuer_may_use_every_algorithm_with_a_public_key() -> None:
    assert issuer(KEYS, algorithms=ALGORITHMS, clock_skew=timedelta(seconds=60)).algorithms == ALGORITHMS


@pytest.mark.parametrize("digest", ["", "abc", "g" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n", " " + "a" * 63])
def test_digest_is_64_hexadecimal_digits(digest: str) -> None:
    with pytest.raises(InvalidIdentityProvider, match=r"the digest of the token of 'agent:bot' is not 64") as refusal:
        ApiToken(digest, "agent:bot", date(2027, 1, 1))

    assert digest not in str(refusal.value) or len(digest) < 4


def test_digest_is_not_shown() -> None:
    assert "a" * 64 not in repr(ApiToken("a" * 64, "agent:bot", date(2027, 1, 1)))
