"""The kill switch: tools, callers and upstreams that are stopped, by whom and why, and who keeps that.

A quarantine stops calls whatever policies and rules say; it never lets one through.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

from gateway.errors import GatewayError, Missing, Refused
from gateway.governance.names import NAME, SUBJECT_KINDS, SUBJECT_NAME

TargetKind = Literal["tool", "principal", "upstream"]

LONGEST_REASON: Final = 1000

_CALLERS: Final = tuple(kind for kind in SUBJECT_KINDS if kind != "role")
_IDENTITY: Final = rf"{NAME}(?:\.{NAME})?"
"""A declared name, or an upstream's name and the one it gave the tool."""

_TARGET: Final = re.compile(
    rf"(?P<tool>tool):{_IDENTITY}|(?P<upstream>upstream):{NAME}|(?P<principal>principal):(?:{'|'.join(_CALLERS)}):{SUBJECT_NAME}"
)


class InvalidQuarantine(GatewayError):
    code = "E_INVALID_QUARANTINE"
    status = 422
    default_message = "the quarantine cannot be understood"


class NotQuarantined(Missing):
    code = "E_NOT_QUARANTINED"
    default_message = "that is not quarantined"


@dataclass(frozen=True, slots=True)
class Target:
    """What is stopped: a tool by its declared name, a caller by its subject in whatever tenant, or an upstream."""

    kind: TargetKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Raises `InvalidQuarantine` for what no target is called."""
        found = _TARGET.fullmatch(text)
        if found is None:
            raise InvalidQuarantine(
                f"{text[:200]!r} names nothing that can be quarantined",
                help="write tool:NAME, upstream:NAME, or principal:SUBJECT with a subject such as user:ana",
            )
        kind: TargetKind = "tool" if found["tool"] else "upstream" if found["upstream"] else "principal"
        return cls(kind, text.partition(":")[2])


@dataclass(frozen=True, slots=True)
class Quarantine:
    """In force from `since` up to, not including, `until`; for good without one. `by` is who asked for it."""

    target: Target
    reason: str
    by: str
    since: datetime
    until: datetime | None = None

    def __post_init__(self) -> None:
        refuse_words(self.reason, self.by)
        if self.until is not None and self.until <= self.since:
            raise InvalidQuarantine("the quarantine would end before it begins", help="give it some time")

    def is_over(self, at: datetime) -> bool:
        return self.until is not None and at >= self.until

    def as_data(self) -> Mapping[str, Any]:
        """For programs: status, listings and the audit log."""
        return {
            "target": str(self.target),
            "reason": self.reason,
            "by": self.by,
            "since": _written(self.since),
            "until": None if self.until is None else _written(self.until),
        }


@dataclass(frozen=True, slots=True)
class QuarantineChange:
    """For the audit log. `reason`, `by` and `at` are of the change; `quarantine` is what was added, or was lifted."""

    action: Literal["add", "lift"]
    quarantine: Quarantine
    reason: str
    by: str
    at: datetime


Also = Callable[[Any, QuarantineChange], None]
"""What else is written in the same transaction, on the store's own connection."""


class KillSwitch(Protocol):
    """What stops calls. A change that was reported as done holds for the next call of every process."""

    def stopped_by(
        self, *, tool: str, subject: str, upstream: str | None = None, is_consequential: bool
    ) -> Quarantine | None:
        """The quarantine that stops a call. Costs a microsecond when nothing changed.

        When it cannot be known what is stopped, calls of consequential tools raise `StoreUnavailable`, and others are
        stopped by what was known last.
        """
        ...

    @property
    def problem(self) -> str | None:
        """Why it cannot be known at the moment what is stopped, for status and logs."""
        ...


class Quarantines(KillSwitch, Protocol):
    """Keeps them. A change returns when it is durable and every process will notice."""

    async def add(self, quarantine: Quarantine, *, also: Also | None = None) -> QuarantineChange:
        """Replaces the one of the same target."""
        ...

    async def lift(self, target: Target, *, reason: str, by: str, also: Also | None = None) -> QuarantineChange:
        """Raises `NotQuarantined`."""
        ...

    async def listed(self) -> list[Quarantine]:
        """Those in force, oldest first."""
        ...


class Quarantined(Refused):
    """What the caller of a stopped tool reads: not why, which is the operators' business."""

    code = "E_QUARANTINED"

    def __init__(self, quarantine: Quarantine) -> None:
        until = quarantine.until
        super().__init__(
            f"the {quarantine.target.kind} is quarantined" + ("" if until is None else f" until {_written(until)}"),
            help="ask the operators of the gateway",
        )
        self.quarantine = quarantine


def refuse_words(reason: str, by: str) -> None:
    """Raises `InvalidQuarantine` for words that say nothing, or cannot be kept or shown on a line."""
    if not all(text.strip() and len(text) <= LONGEST_REASON and text.isprintable() for text in (reason, by)):
        raise InvalidQuarantine(
            "the reason, or who gives it, is empty, too long, or not one line of text",
            help=f"say why in one line of at most {LONGEST_REASON} characters",
        )


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
