"""Credentials that count no more although they are valid: which, by whom and why, and the protocol of whoever asks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

from gateway.errors import GatewayError, Missing

LONGEST_ID: Final = 1000
LONGEST_REASON: Final = 1000


class InvalidRevocation(GatewayError):
    code = "E_INVALID_REVOCATION"
    status = 422
    default_message = "the revocation cannot be understood"


class NotRevoked(Missing):
    code = "E_NOT_REVOKED"
    default_message = "that token is not revoked"


@dataclass(frozen=True, slots=True)
class Revocation:
    """`token_id` is a signed token's `jti`, or an API token's SHA-256.

    It is forgotten after `until`, when the token has ended by itself; without one, never.
    """

    token_id: str
    reason: str
    by: str
    since: datetime
    until: datetime | None = None

    def __post_init__(self) -> None:
        if not _is_line(self.token_id, LONGEST_ID):
            raise InvalidRevocation(
                "that is no id of a token", help="give a signed token's jti, or the SHA-256 of an API token"
            )
        if not _is_line(self.reason, LONGEST_REASON) or not _is_line(self.by, LONGEST_REASON):
            raise InvalidRevocation(
                "the reason is empty, too long, or not one line of text",
                help=f"say why in one line of at most {LONGEST_REASON} characters",
            )

    def is_over(self, at: datetime) -> bool:
        return self.until is not None and at >= self.until

    def as_data(self) -> Mapping[str, Any]:
        return {
            "token": self.token_id,
            "reason": self.reason,
            "by": self.by,
            "since": _written(self.since),
            "until": None if self.until is None else _written(self.until),
        }


@dataclass(frozen=True, slots=True)
class RevocationChange:
    """For the audit log: what was revoked, or is valid again, by whom and why."""

    action: Literal["revoke", "restore"]
    revocation: Revocation
    reason: str
    by: str
    at: datetime


AlsoRevoking = Callable[[Any, RevocationChange], None]
"""What else is written in the same transaction, on the store's own connection."""


class RevokedTokens(Protocol):
    def has_any(self, token_ids: frozenset[str]) -> bool:
        """Whether a credential that goes by these ids counts no more. Raises `StoreUnavailable` if nobody knows."""
        ...


class Revocations(RevokedTokens, Protocol):
    """Keeps them. A change returns when it is durable and every process will notice."""

    async def revoke(self, revocation: Revocation, *, also: AlsoRevoking | None = None) -> RevocationChange: ...

    async def restore(
        self, token_id: str, *, reason: str, by: str, also: AlsoRevoking | None = None
    ) -> RevocationChange:
        """Raises `NotRevoked`."""
        ...

    async def listed(self) -> list[Revocation]:
        """Those in force, oldest first."""
        ...


def _is_line(text: str, longest: int) -> bool:
    return bool(text.strip()) and len(text) <= longest and text.isprintable()


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
