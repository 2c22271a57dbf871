"""How long the served configuration is valid: a folder for ever, a bundle until the time its signer set."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from gateway.errors import Refused

EXPIRY_WARNING_PERIOD: Final = timedelta(days=7)
"""How long before the expiry operators are warned."""

ValidityState = Literal["current", "ending", "expired", "over"]


class ConfigExpired(Refused):
    """The error for callers while the served bundle has expired."""

    code = "E_CONFIG_EXPIRED"
    status = 503
    default_message = "the gateway's configuration has expired"


@dataclass(slots=True)
class Validity:
    """The validity of one process's configuration. A reload sets `until`; without it, nothing expires.

    Calls that may change something are refused from `until` on. Other calls go on for the grace period: a late renewal
    does not stop reads at once, and an attacker who blocks renewals cannot keep old rights alive for ever.
    """

    grace: timedelta = timedelta(0)
    until: datetime | None = None

    def is_refused(self, *, is_consequential: bool) -> bool:
        until = self.until
        if until is None:
            return False
        return datetime.now(UTC) >= (until if is_consequential else until + self.grace)

    @property
    def state(self) -> ValidityState:
        """`expired` still serves calls that change nothing; `over` serves nothing."""
        if self.until is None:
            return "current"
        left = self.until - datetime.now(UTC)
        if left > EXPIRY_WARNING_PERIOD:
            return "current"
        return "ending" if left > timedelta(0) else "expired" if -left < self.grace else "over"

    @property
    def problem(self) -> str | None:
        """What the operator has to act on, if anything."""
        state = self.state
        if state == "current":
            return None
        if state == "ending":
            return f"the served bundle is valid until {self.describe}: build and sign a new one"
        refused = "calls" if state == "over" else "calls that may change something"
        return f"the served bundle was valid until {self.describe}: {refused} are refused"

    @property
    def describe(self) -> str | None:
        return None if self.until is None else self.until.isoformat(timespec="seconds").replace("+00:00", "Z")
