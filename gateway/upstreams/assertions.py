"""Who a caller is, said under the gateway's seal: a short-lived JWT for an authorisation server that trusts our key."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from secrets import token_urlsafe
from typing import Final, Literal

import jwt

from gateway.backends.credentials import Secret
from gateway.governance.ports import BackendFailed
from gateway.governance.principals import Principal

Algorithm = Literal["RS256", "ES256", "EdDSA", "HS256"]

LIFE: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Assertion:
    """`audience` is the authorisation server, by whatever name it goes."""

    issuer: str
    audience: str
    algorithm: Algorithm
    key: Secret = field(repr=False)
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC), repr=False)

    def of(self, principal: Principal) -> str:
        now = self.clock()
        claims = {
            "iss": self.issuer,
            "sub": principal.subject,
            "aud": self.audience,
            "iat": now,
            "exp": now + LIFE,
            "jti": token_urlsafe(16),
        }
        if principal.tenant is not None:
            claims["tenant"] = principal.tenant
        try:
            return jwt.encode(claims, self.key(), algorithm=self.algorithm)
        except Exception as error:  # a key of another kind, or a store of secrets that fails in a way of its own
            raise BackendFailed("unavailable", "who calls cannot be said under the gateway's key") from error
