"""Why a credential is refused, in words for operators; callers learn no more than that it is."""

from typing import Literal

from gateway.errors import Unauthenticated

Reason = Literal[
    "unknown-token",  # neither listed nor signed
    "unreadable",  # looks signed, is not strict JSON inside
    "unknown-issuer",
    "algorithm",
    "header",  # a header parameter that is not accepted, or has the wrong type
    "unknown-key",
    "key-type",
    "signature",
    "audience",
    "expired",
    "not-yet-valid",
    "times",  # exp is missing, or a time is no number
    "subject",
    "tenant",
    "revoked",
]


def refused(reason: Reason) -> Unauthenticated:
    """A credential was read, and does not count."""
    return Unauthenticated("invalid_token", reason=reason)
