"""Authentication: the only way from a credential to a principal, and the challenge for clients without one.

It is independent of the HTTP server: it gets the value of the Authorization header, and the server must have refused
requests with two of them. Every failure is `Unauthenticated`, or `CredentialUnknown` if revocations cannot be checked
at the moment; an error never admits a caller. Challenges follow RFC 6750, metadata for clients RFC 9728.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from gateway.errors import Unauthenticated
from gateway.identity.credentials import (
    ApiTokens,
    CredentialCache,
    JwtVerifier,
    VerifiedCredential,
    check_credential_size,
    parse_bearer_header,
    parse_jwt,
    refuse_credential,
)
from gateway.identity.key_sets import KeyCache, MonotonicClock, Sleep, open_key_source
from gateway.identity.provider_settings import AnonymousProvider, IdentityProvider, JwtProvider, TokenProvider
from gateway.model import Credential, Principal
from gateway.policy import RevocationList

_QUOTABLE: Final = re.compile(r"[\x20\x21\x23-\x5b\x5d-\x7e]+")


def build_challenge(
    resource_metadata_url: str | None, error: Unauthenticated | None, scope: str | None = None
) -> bytes:
    """Return the value of WWW-Authenticate. It names the kind of error, but never the check that failed.

    Raise `ValueError` for a text that cannot be quoted: an address may come from the Host header of a request.
    """
    word = error.error if error is not None else None
    parameters = {"resource_metadata": resource_metadata_url, "error": word, "scope": scope}
    parameters_text = ", ".join(f"{name}={_quote(value)}" for name, value in parameters.items() if value is not None)
    return f"Bearer {parameters_text}".rstrip().encode("ascii")


def protected_resource_metadata(resource: str, providers: Iterable[IdentityProvider]) -> dict[str, Any]:
    """Return the metadata of a resource: its token issuers. Without issuers, only listed tokens are accepted."""
    issuers = _issuers(providers)
    metadata: dict[str, Any] = {"resource": resource.rstrip("/"), "bearer_methods_supported": ["header"]}
    return {**metadata, "authorization_servers": issuers} if issuers else metadata


def issuer_metadata(providers: Iterable[IdentityProvider]) -> str | None:
    """Return the URL of the issuer's metadata for clients that support one; `None` unless there is exactly one."""
    issuers = _issuers(providers)
    return f"{issuers[0].rstrip('/')}/.well-known/openid-configuration" if len(issuers) == 1 else None


def _issuers(providers: Iterable[IdentityProvider]) -> list[str]:
    return list(dict.fromkeys(provider.issuer for provider in providers if isinstance(provider, JwtProvider)))


def _quote(value: str) -> str:
    if not _QUOTABLE.fullmatch(value):
        raise ValueError("a challenge must be printable ASCII without quotes and backslashes")
    return f'"{value}"'


_NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)


class Authenticator:
    """All identity providers of a gateway. The clock returns aware times."""

    def __init__(
        self, providers: Sequence[IdentityProvider], clock: MonotonicClock, *, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._cache = CredentialCache()
        self._anonymous = next(
            (_build_anonymous(entry) for entry in providers if isinstance(entry, AnonymousProvider)), None
        )
        self._tokens = ApiTokens(
            token for provider in providers if isinstance(provider, TokenProvider) for token in provider.tokens
        )
        self._issuers = [self._build_verifier(provider) for provider in providers if isinstance(provider, JwtProvider)]

    @property
    def allows_anonymous(self) -> bool:
        """Whether callers without credentials are admitted; such a gateway must listen on loopback only."""
        return self._anonymous is not None

    @property
    def issuers_without_keys(self) -> tuple[str, ...]:
        """Issuers whose tokens cannot be verified at the moment, for the readiness check."""
        return tuple(issuer.provider.issuer for issuer in self._issuers if not issuer.keys.are_usable)

    def can_check_revocations(self) -> bool:
        """Whether revocations can be checked at the moment, for the readiness check."""
        return self._cache.can_check_revocations()

    async def start(self) -> None:
        """Load all keys and keep them fresh. Raise `KeysUnavailable` for an unusable key file."""
        try:
            for issuer in self._issuers:
                await issuer.keys.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for issuer in self._issuers:
            await issuer.keys.close()

    async def authenticate(self, authorization: bytes | None) -> Principal:
        """Return the principal of the header's value; `None` means that the request has no such header.

        Raise `Unauthenticated` or `CredentialUnknown`.
        """
        if authorization is None:
            return self._without_credential()
        return self.get_cached(authorization) or await self._verify(authorization, _digest(authorization))

    def get_cached(self, authorization: bytes | None) -> Principal | None:
        """Return the principal if it is cached; `None` for a credential that has to be verified."""
        if authorization is None:
            return self._without_credential()
        check_credential_size(authorization)
        return self._cache.get(_digest(authorization), self._clock())

    def revoke(self, *, token: str | None = None, subject: str | None = None) -> None:
        """Refuse from now on. `token` is a signed token's `jti`, or an API token's SHA-256 in hexadecimal digits."""
        self._cache.revoke(token=token, subject=subject)

    def set_revocations(self, revoked: RevocationList) -> None:
        """Also refuse tokens that other processes revoked, or that were revoked before this process started."""
        self._cache.set_revocations(revoked)

    def _build_verifier(self, provider: JwtProvider) -> JwtVerifier:
        keys = KeyCache(
            provider.issuer,
            open_key_source(provider.keys),
            algorithms=provider.algorithms,
            clock=self._clock,
            sleep=self._sleep,
            on_change=self._cache.clear,
        )
        return JwtVerifier(provider, keys, clock=self._clock)

    def _without_credential(self) -> Principal:
        if self._anonymous is None:
            raise Unauthenticated(None, reason="no-credential")
        if self._cache.is_revoked(self._anonymous):
            raise refuse_credential("revoked")
        return self._anonymous.principal

    async def _verify(self, authorization: bytes, digest: bytes) -> Principal:
        credential = parse_bearer_header(authorization)
        listed = self._tokens.verify(credential, now=self._clock())
        verified = listed or await self._verify_with_issuer(credential)
        # A revoked credential is cached, too: refusing it again must not cost another signature.
        self._cache.put(digest, verified, now=self._clock())
        # Checked after all waiting, so that a revocation in the meantime is honoured.
        if self._cache.is_revoked(verified):
            raise refuse_credential("revoked")
        return verified.principal

    async def _verify_with_issuer(self, credential: bytes) -> VerifiedCredential:
        token = parse_jwt(credential)
        refusal = refuse_credential("unknown-issuer")
        for issuer in self._issuers:
            if issuer.provider.issuer != token.issuer:
                continue
            try:
                return await issuer.verify(token)
            except Unauthenticated as error:
                # Another provider may accept tokens of the same issuer for another audience.
                refusal = error
        raise refusal


def _digest(authorization: bytes) -> bytes:
    return sha256(authorization).digest()


def _build_anonymous(provider: AnonymousProvider) -> VerifiedCredential:
    """Return the principal of callers without a credential; it never expires."""
    credential = Credential("none", provider.provider)
    principal = Principal(provider.subject, provider.roles, joins_traces=provider.joins_traces, credential=credential)
    return VerifiedCredential(principal, _NEVER, frozenset())
