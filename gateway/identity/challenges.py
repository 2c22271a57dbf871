"""What a caller without a valid credential is told: the challenge (RFC 6750) and where to get a token (RFC 9728)."""

import re
from collections.abc import Iterable
from typing import Any, Final

from gateway.errors import Unauthenticated
from gateway.identity.providers import JwtProvider, Provider

_QUOTABLE: Final = re.compile(r"[\x20\x21\x23-\x5b\x5d-\x7e]+")


def challenge(resource_metadata_url: str | None, error: Unauthenticated | None, scope: str | None = None) -> bytes:
    """The value of WWW-Authenticate. It says what kind of error it was, and never which check failed.

    Raises `ValueError` for a text that would not stay inside its quotes: an address may come from a request's Host.
    """
    word = error.error if error is not None else None
    parameters = {"resource_metadata": resource_metadata_url, "error": word, "scope": scope}
    written = ", ".join(f"{name}={_quoted(value)}" for name, value in parameters.items() if value is not None)
    return f"Bearer {written}".rstrip().encode("ascii")


def protected_resource_metadata(resource: str, providers: Iterable[Provider]) -> dict[str, Any]:
    """The metadata document of a resource: which issuers give tokens for it. Without any, only listed tokens count."""
    issuers = _issuers(providers)
    metadata: dict[str, Any] = {"resource": resource.rstrip("/"), "bearer_methods_supported": ["header"]}
    return {**metadata, "authorization_servers": issuers} if issuers else metadata


def issuer_metadata(providers: Iterable[Provider]) -> str | None:
    """Where the issuer describes itself, for clients that know of one issuer only; `None` if there is not just one."""
    issuers = _issuers(providers)
    return f"{issuers[0].rstrip('/')}/.well-known/openid-configuration" if len(issuers) == 1 else None


def _issuers(providers: Iterable[Provider]) -> list[str]:
    return list(dict.fromkeys(provider.issuer for provider in providers if isinstance(provider, JwtProvider)))


def _quoted(value: str) -> str:
    if not _QUOTABLE.fullmatch(value):
        raise ValueError("a challenge holds printable ASCII without quotes and backslashes")
    return f'"{value}"'
