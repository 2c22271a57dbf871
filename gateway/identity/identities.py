"""Who is calling: the one way from a credential to a principal.

Knows no HTTP server: it is given the value of the Authorization header, and whoever serves must have refused a request
with two of them. Every failure is `Unauthenticated`, or `CredentialUnknown` where nobody can tell at present whether a
credential was revoked; nobody is let in because something went wrong.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from gateway.errors import Unauthenticated
from gateway.governance.principals import Credential, Principal
from gateway.governance.revocations import RevokedTokens
from gateway.identity.admissions import Admission, Admissions
from gateway.identity.api_tokens import ApiTokens
from gateway.identity.bearer import bearer_credential, refuse_oversize
from gateway.identity.key_keeping import Clock, Keys, Sleep
from gateway.identity.key_sources import source_of
from gateway.identity.providers import JwtProvider, NobodyProvider, Provider, TokenProvider
from gateway.identity.refusals import refused
from gateway.identity.signed_tokens import Issuer, read_signed

_NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)


class Identities:
    """All identity providers of a gateway. The clock gives aware moments."""

    def __init__(self, providers: Sequence[Provider], clock: Clock, *, sleep: Sleep = asyncio.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._admissions = Admissions()
        self._nobody = next((_nobody(entry) for entry in providers if isinstance(entry, NobodyProvider)), None)
        self._tokens = ApiTokens(
            token for provider in providers if isinstance(provider, TokenProvider) for token in provider.tokens
        )
        self._issuers = [self._issuer(provider) for provider in providers if isinstance(provider, JwtProvider)]

    @property
    def is_open(self) -> bool:
        """Whether callers without any credential are let in: never listen beyond loopback then."""
        return self._nobody is not None

    @property
    def issuers_without_keys(self) -> tuple[str, ...]:
        """Issuers whose tokens nobody can verify at the moment, for whoever tells if the gateway is ready."""
        return tuple(issuer.provider.issuer for issuer in self._issuers if not issuer.keys.are_usable)

    def knows_revocations(self) -> bool:
        """Whether anybody can be let in at the moment, for the same."""
        return self._admissions.knows_revocations()

    async def start(self) -> None:
        """Read all keys and keep them fresh. Raises `KeysUnavailable` where a key file cannot be used."""
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
        """Whoever the header's value proves to call; `None` is a request without one.

        Raises `Unauthenticated` and `CredentialUnknown`.
        """
        if authorization is None:
            return self._without_credential()
        return self.recalled(authorization) or await self._verified(authorization, _digest(authorization))

    def recalled(self, authorization: bytes | None) -> Principal | None:
        """The same as far as it is known without waiting: `None` for a credential that has to be verified."""
        if authorization is None:
            return self._without_credential()
        refuse_oversize(authorization)
        return self._admissions.recall(_digest(authorization), self._clock())

    def revoke(self, *, token: str | None = None, subject: str | None = None) -> None:
        """Refuse from now on. `token` is a signed token's `jti`, or an API token's SHA-256 in hexadecimal digits."""
        self._admissions.revoke(token=token, subject=subject)

    def heed(self, revoked: RevokedTokens) -> None:
        """Refuse these from now on, too: tokens that were revoked in other processes, or before this one began."""
        self._admissions.heed(revoked)

    def _issuer(self, provider: JwtProvider) -> Issuer:
        keys = Keys(
            provider.issuer,
            source_of(provider.keys),
            algorithms=provider.algorithms,
            clock=self._clock,
            sleep=self._sleep,
            on_change=self._admissions.forget,
        )
        return Issuer(provider, keys, clock=self._clock)

    def _without_credential(self) -> Principal:
        if self._nobody is None:
            raise Unauthenticated(None, reason="no-credential")
        if self._admissions.is_revoked(self._nobody):
            raise refused("revoked")
        return self._nobody.principal

    async def _verified(self, authorization: bytes, digest: bytes) -> Principal:
        credential = bearer_credential(authorization)
        listed = self._tokens.admit(credential, now=self._clock())
        admission = listed or await self._admitted_by_issuer(credential)
        # Asked after all waiting is over: a revocation meanwhile counts.
        if self._admissions.is_revoked(admission):
            raise refused("revoked")
        self._admissions.remember(digest, admission, now=self._clock())
        return admission.principal

    async def _admitted_by_issuer(self, credential: bytes) -> Admission:
        token = read_signed(credential)
        refusal = refused("unknown-issuer")
        for issuer in self._issuers:
            if issuer.provider.issuer != token.issuer:
                continue
            try:
                return await issuer.admit(token)
            except Unauthenticated as error:
                # Another provider may accept the same issuer's tokens for another audience.
                refusal = error
        raise refusal


def _digest(authorization: bytes) -> bytes:
    return sha256(authorization).digest()


def _nobody(provider: NobodyProvider) -> Admission:
    """Who calls without a credential: always the same, and there is nothing that could end."""
    credential = Credential("none", provider.provider)
    principal = Principal(provider.subject, provider.roles, joins_traces=provider.joins_traces, credential=credential)
    return Admission(principal, _NEVER, frozenset())
