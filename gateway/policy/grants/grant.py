"""A grant: a role that a caller asked for, who decided about it, and from when until when it is in force."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Protocol

from gateway.errors import GatewayError, Missing, Refused
from gateway.model import SUBJECT_KINDS, SUBJECT_NAME_REGEX, Principal

GrantState = Literal["pending", "approved", "refused", "revoked"]
GrantStatus = Literal["pending", "lapsed", "in-force", "ended", "refused", "revoked"]

LONGEST_REASON: Final = 1000
LONGEST_GRANT: Final = timedelta(days=7)
"""No policy allows longer grants: what lasts longer is a policy row with an end, which is reviewed in Git."""
REQUEST_LIFETIME: Final = timedelta(hours=1)
"""How long approvers can decide about a request."""

_SUBJECT: Final = re.compile(rf"(?:{'|'.join(kind for kind in SUBJECT_KINDS if kind != 'role')}):{SUBJECT_NAME_REGEX}")
_ROLE: Final = re.compile(rf"role:{SUBJECT_NAME_REGEX}")


class InvalidGrant(GatewayError):
    code = "E_INVALID_GRANT"
    status = 422
    default_message = "the grant is not valid"


class GrantRefused(Refused):
    """The grant policies do not allow the request, or the principal may not decide about it."""

    code = "E_GRANT_REFUSED"
    default_message = "the grant policies do not allow this"


class UnknownGrant(Missing):
    code = "E_UNKNOWN_GRANT"
    default_message = "there is no such grant"


class GrantClosed(GatewayError):
    code = "E_GRANT_CLOSED"
    status = 409
    default_message = "the grant is decided already"


@dataclass(frozen=True, slots=True)
class Grant:
    """`since` and `until` are set by the approval; before that, the grant is a request that ends at `lapses_at`."""

    id: str
    subject: str
    tenant: str | None
    role: str
    policy: str
    duration: timedelta
    reason: str
    requester: Principal
    requested_at: datetime
    lapses_at: datetime
    state: GrantState = "pending"
    decider: Principal | None = None
    """Who approved or refused it."""
    decided_at: datetime | None = None
    since: datetime | None = None
    until: datetime | None = None
    revoked_by: str | None = None
    revoked_at: datetime | None = None

    @property
    def recipient(self) -> tuple[str | None, str]:
        return self.tenant, self.subject

    @property
    def ends_at(self) -> datetime | None:
        """When it ended or ends: at its end, or when it was revoked before."""
        if self.until is None or self.revoked_at is None:
            return self.until
        return min(self.until, self.revoked_at)

    def status(self, at: datetime) -> GrantStatus:
        if self.state == "pending":
            return "pending" if at < self.lapses_at else "lapsed"
        if self.state == "approved":
            return "in-force" if self.is_running(at) else "ended"
        return self.state

    def is_running(self, at: datetime) -> bool:
        """Whether it is approved and not over. What is in force is decided by its policy, too."""
        if self.state != "approved" or self.since is None or self.until is None:
            return False
        return self.since <= at < self.until

    def to_dict(self, at: datetime) -> Mapping[str, Any]:
        """Return it as JSON values for listings, status and REST."""
        moments = {"requestedAt": self.requested_at, "lapsesAt": self.lapses_at, "since": self.since}
        moments |= {"until": self.until, "revokedAt": self.revoked_at}
        return {
            "id": self.id,
            "status": self.status(at),
            "subject": self.subject,
            "tenant": self.tenant,
            "role": self.role,
            "policy": self.policy,
            "seconds": int(self.duration.total_seconds()),
            "reason": self.reason,
            "requester": self.requester.subject,
            "decidedBy": None if self.decider is None else self.decider.subject,
            "revokedBy": self.revoked_by,
            **{name: None if each is None else format_moment(each) for name, each in moments.items()},
        }


@dataclass(frozen=True, slots=True)
class GrantLedger:
    """The approved and revoked grants that can still matter: those in force, and those that count for totals."""

    grants: Sequence[Grant] = ()
    by_recipient: Mapping[tuple[str | None, str], Sequence[Grant]] = field(default_factory=dict)

    @classmethod
    def of(cls, grants: Iterable[Grant]) -> "GrantLedger":
        found = tuple(grants)
        by_recipient: dict[tuple[str | None, str], list[Grant]] = {}
        for grant in found:
            by_recipient.setdefault(grant.recipient, []).append(grant)
        return cls(found, by_recipient)

    def current(self) -> "GrantLedger":
        """Return itself: grants that were read once are a `GrantSource` that does not change."""
        return self


class GrantSource(Protocol):
    """Where decisions read grants from: a value in memory that every change of any process replaces."""

    def current(self) -> GrantLedger:
        """Raises `StoreUnavailable` if the grants cannot be known."""
        ...


def format_moment(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def require_subject(text: str) -> str:
    """Return the text if it is a caller that can get a grant. Raises `InvalidGrant`."""
    if _SUBJECT.fullmatch(text) is None:
        raise InvalidGrant(f"{text[:200]!r} is not a caller", help="write user:NAME, agent:NAME or service:NAME")
    return text


def require_role(text: str) -> str:
    if _ROLE.fullmatch(text) is None:
        raise InvalidGrant(f"{text[:200]!r} is not a role", help="write role:NAME")
    return text


def require_reason(text: str) -> str:
    """Return the text if it is one printable line. Raises `InvalidGrant`."""
    if not text.strip() or len(text) > LONGEST_REASON or not text.isprintable():
        raise InvalidGrant(
            "the reason is empty, too long, or not one line of text",
            help=f"give a reason in one line of at most {LONGEST_REASON} characters",
        )
    return text


def require_duration(duration: timedelta) -> timedelta:
    if not timedelta(seconds=1) <= duration <= LONGEST_GRANT:
        raise InvalidGrant("the duration is shorter than a second or longer than a week", help="write it as 30m or 2h")
    return duration
