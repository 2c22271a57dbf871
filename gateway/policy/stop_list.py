"""The stop list: tools, principals, upstreams and tokens that operators have stopped, by whom and why.

A stop refuses calls whatever policies and rules allow; it never lets one through. A stopped tool, principal or upstream
is called quarantined, a stopped token revoked.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

from gateway.errors import GatewayError, Missing, Refused
from gateway.model import NAME_REGEX, SUBJECT_KINDS, SUBJECT_NAME_REGEX

StopKind = Literal["tool", "principal", "upstream", "token"]

LONGEST_REASON: Final = 1000
LONGEST_ID: Final = 1000

_CALLERS: Final = tuple(kind for kind in SUBJECT_KINDS if kind != "role")
_IDENTITY: Final = rf"{NAME_REGEX}(?:\.{NAME_REGEX})?"
"""A declared name, or the name of an upstream and the upstream's name of the tool."""

_TARGET: Final = re.compile(
    rf"(?P<tool>tool):{_IDENTITY}|(?P<upstream>upstream):{NAME_REGEX}|(?P<principal>principal):(?:{'|'.join(_CALLERS)}):{SUBJECT_NAME_REGEX}"
)


class InvalidQuarantine(GatewayError):
    code = "E_INVALID_QUARANTINE"
    status = 422
    default_message = "the quarantine is not valid"


class InvalidRevocation(GatewayError):
    code = "E_INVALID_REVOCATION"
    status = 422
    default_message = "the revocation is not valid"


class QuarantineNotFound(Missing):
    code = "E_NOT_QUARANTINED"
    default_message = "the target is not quarantined"


class RevocationNotFound(Missing):
    code = "E_NOT_REVOKED"
    default_message = "the token is not revoked"


@dataclass(frozen=True, slots=True)
class StopTarget:
    """A tool by its declared name, a principal by its subject in any tenant, an upstream by its name, or a token.

    The name of a token is the `jti` of a signed token, or the SHA-256 of an API token.
    """

    kind: StopKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def is_token(self) -> bool:
        return self.kind == "token"

    @classmethod
    def parse(cls, text: str) -> "StopTarget":
        """Parse the name of anything but a token. Raises `InvalidQuarantine`."""
        found = _TARGET.fullmatch(text)
        if found is None:
            raise InvalidQuarantine(
                f"{text[:200]!r} is not a tool, upstream or principal to quarantine",
                help="write tool:NAME, upstream:NAME, or principal:SUBJECT with a subject such as user:ana",
            )
        kind: StopKind = "tool" if found["tool"] else "upstream" if found["upstream"] else "principal"
        return cls(kind, text.partition(":")[2])


@dataclass(frozen=True, slots=True)
class Stop:
    """In force from `since` up to, not including, `until`; for good without one. `by` is the operator.

    The `until` of a token is when the token itself expires and its stop is not needed any more.
    """

    target: StopTarget
    reason: str
    by: str
    since: datetime
    until: datetime | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidQuarantine` or `InvalidRevocation`."""
        if self.target.is_token and not _is_line(self.target.name, LONGEST_ID):
            raise InvalidRevocation(
                "not the id of a token", help="give a signed token's jti, or the SHA-256 of an API token"
            )
        invalid = InvalidRevocation if self.target.is_token else InvalidQuarantine
        if not (_is_line(self.reason, LONGEST_REASON) and _is_line(self.by, LONGEST_REASON)):
            raise invalid(
                "the reason or the operator's name is empty, too long, or not one line of text",
                help=f"give a reason in one line of at most {LONGEST_REASON} characters",
            )
        if not self.target.is_token and self.until is not None and self.until <= self.since:
            raise invalid("the quarantine would end before it begins", help="give it some time")

    def is_expired(self, at: datetime) -> bool:
        return self.until is not None and at >= self.until

    def to_dict(self) -> Mapping[str, Any]:
        """Return it as JSON values for status, listings and the audit log."""
        target = {"token": self.target.name} if self.target.is_token else {"target": str(self.target)}
        return {
            **target,
            "reason": self.reason,
            "by": self.by,
            "since": _format_time(self.since),
            "until": None if self.until is None else _format_time(self.until),
        }


@dataclass(frozen=True, slots=True)
class StopChange:
    """For the audit log. `reason`, `by` and `at` belong to the change; `stop` is what was added, or lifted."""

    action: Literal["add", "lift"]
    stop: Stop
    reason: str
    by: str
    at: datetime


StopHook = Callable[[Any, StopChange], None]
"""Writes something else in the same transaction, on the store's own connection."""


class KillSwitch(Protocol):
    """Stops calls. A change that was reported as done holds for the next call of every process."""

    def find_stop(self, *, tool: str, subject: str, upstream: str | None = None, is_consequential: bool) -> Stop | None:
        """Return the stop of a call's tool, principal or upstream. Costs a microsecond when nothing changed.

        If the store is unavailable, calls of consequential tools raise `StoreUnavailable`, and the last known list
        decides about others.
        """
        ...

    @property
    def problem(self) -> str | None:
        """Why the list may be out of date, for status and logs."""
        ...


class RevocationList(Protocol):
    def has_revoked(self, token_ids: frozenset[str]) -> bool:
        """Whether a token with one of these ids is revoked. Raises `StoreUnavailable` if that cannot be known."""
        ...


class StopList(KillSwitch, RevocationList, Protocol):
    """Stores stops. A change returns when it is durable and every process will notice it."""

    async def add(self, stop: Stop, *, also: StopHook | None = None) -> StopChange:
        """Add a stop, or replace the one of the same target."""
        ...

    async def lift(self, target: StopTarget, *, reason: str, by: str, also: StopHook | None = None) -> StopChange:
        """Raises `QuarantineNotFound` or `RevocationNotFound`."""
        ...

    async def list_stops(self) -> list[Stop]:
        """Return the stops in force of everything but tokens, oldest first."""
        ...

    async def list_revoked_tokens(self) -> list[Stop]:
        """Return the stops in force of tokens, oldest first."""
        ...


class CallQuarantined(Refused):
    """Error for the caller of a stopped tool. The reason is for operators only."""

    code = "E_QUARANTINED"

    def __init__(self, stop: Stop) -> None:
        until = "" if stop.until is None else f" until {_format_time(stop.until)}"
        super().__init__(f"the {stop.target.kind} is quarantined{until}", help="ask the operators of the gateway")


def _is_line(text: str, longest: int) -> bool:
    return bool(text.strip()) and len(text) <= longest and text.isprintable()


def _format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
