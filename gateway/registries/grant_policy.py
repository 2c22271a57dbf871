"""A grant policy: which roles callers can get for a short time, who can get them, for how long, and who approves."""

from dataclasses import dataclass
from datetime import timedelta

from gateway.registries.diagnostics import Position


@dataclass(frozen=True, slots=True)
class GrantPolicy:
    """Limits of grants. `recipients` and `approvers` are subjects and roles; granted roles do not count for either."""

    name: str
    roles: tuple[str, ...]
    recipients: tuple[str, ...]
    approvers: tuple[str, ...]
    max_duration: timedelta
    """Of one grant."""
    max_total: timedelta
    """Of all grants of one role to one subject within any `period`, so that renewals are bounded."""
    period: timedelta
    max_active: int
    """How many of its grants can be in force at once."""
    position: Position
    description: str = ""
