"""Challenges for callers without a valid credential."""

from datetime import date
from pathlib import Path

import pytest

from gateway.errors import Unauthenticated
from gateway.identity.authenticator import build_challenge, issuer_metadata, protected_resource_metadata
from gateway.identity.provider_settings import (
    AnonymousProvider,
    ApiToken,
    FileKeySettings,
    IdentityProvider,
    TokenProvider,
)
from tests.identity.token_samples import ISSUER, issuer

URL = "https://gateway.example.com/.well-known/oauth-protected-resource/mcp"
KEYS = FileKeySettings(Path("keys.json"))
TOKENS = TokenProvider((ApiToken("a" * 64, "agent:bot", date(2027, 1, 1)),))


@pytest.mark.parametrize(
    ("error", "scope", "value"),
    [
        (None, None, b'Bearer resource_metadata="%b"'),
        (Unauthenticated(None, reason="no-credential"), None, b'Bearer resource_metadata="%b"'),
        (
            Unauthenticated("invalid_token", reason="expired"),
            None,
            b'Bearer resource_metadata="%b", error="invalid_token"',
        ),
        (
            Unauthenticated("invalid_request", reason="authorization-header"),
            "tools:read tools:call",
            b'Bearer resource_metadata="%b", error="invalid_request", scope="tools:read tools:call"',
        ),
    ],
    ids=["first request", "no credential", "invalid token", "invalid request with a scope"],
)
def test_challenge_names_the_metadata_and_the_kind_of_error(
    error: Unauthenticated | None, scope: str | None, value: bytes
) -> None:
    assert build_challenge(URL, error, scope) == value % URL.encode()


def test_challenge_without_metadata_is_the_scheme_alone() -> None:
    assert build_challenge(None, None) == b"Bearer"


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\r\nSet-Cookie: b", "ä", "", "\x7f"], ids=repr)
def test_text_that_would_leave_its_quotes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        build_challenge(text, None)
    with pytest.raises(ValueError, match="printable ASCII"):
        build_challenge(URL, None, scope=text)


def test_metadata_names_each_issuer_once() -> None:
    other = issuer(KEYS, issuer="https://other.example.com/")
    providers: list[IdentityProvider] = [
        issuer(KEYS),
        TOKENS,
        other,
        issuer(KEYS, audience=frozenset({"b"})),
        AnonymousProvider("user:local"),
    ]

    assert protected_resource_metadata("https://gateway.example.com/mcp/", providers) == {
        "resource": "https://gateway.example.com/mcp",
        "authorization_servers": [ISSUER, "https://other.example.com/"],
        "bearer_methods_supported": ["header"],
    }


def test_metadata_without_issuers_names_no_authorisation_server() -> None:
    assert protected_resource_metadata("https://gateway.example.com", [TOKENS]) == {
        "resource": "https://gateway.example.com",
        "bearer_methods_supported": ["header"],
    }


@pytest.mark.parametrize("address", ["https://login.example.com/realm", "https://login.example.com/realm/"])
def test_one_issuer_describes_itself_below_its_own_address(address: str) -> None:
    providers: list[IdentityProvider] = [TOKENS, issuer(KEYS, issuer=address), issuer(KEYS, issuer=address)]

    assert issuer_metadata(providers) == "https://login.example.com/realm/.well-known/openid-configuration"


def test_none_and_several_issuers_are_not_one() -> None:
    assert issuer_metadata([TOKENS]) is None
    assert issuer_metadata([issuer(KEYS), issuer(KEYS, issuer="https://other.example.com")]) is None
