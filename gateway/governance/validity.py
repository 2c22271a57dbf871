"""Until when what is served counts: a folder for ever, a bundle until the moment that its signer wrote into it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from gateway.errors import Refused

SOON: Final = timedelta(days=7)
"""How long before the end it is told that it comes."""

State = Literal["current", "ending", "expired", "over"]


class ConfigExpired(Refused):
    """What a caller reads while nobody vouches any more for what is served."""

    code = "E_CONFIG_EXPIRED"
    status = 503
    default_message = "what the gateway is configured with does not count any more"


@dataclass(slots=True)
class Validity:
    """Of one process. Whoever puts something else in force sets `until`; without one nothing ends.

    Calls that may change something end with it. Others go on for the grace: whoever renews a bundle late stops no
    reading at once, and whoever keeps a renewal away does not keep old rights alive for ever.
    """

    grace: timedelta = timedelta(0)
    until: datetime | None = None

    def refuses(self, *, is_consequential: bool) -> bool:
        until = self.until
        if until is None:
            return False
        return datetime.now(UTC) >= (until if is_consequential else until + self.grace)

    @property
    def state(self) -> State:
        """`expired` still serves what changes nothing; `over` serves nothing."""
        if self.until is None:
            return "current"
        left = self.until - datetime.now(UTC)
        if left > SOON:
            return "current"
        return "ending" if left > timedelta(0) else "expired" if -left < self.grace else "over"

    @property
    def problem(self) -> str | None:
        """For an operator, as long as there is something to do."""
        state = self.state
        if state == "current":
            return None
        if state == "ending":
            return f"the bundle that is served counts until {self.told}: build and sign a new one"
        refused = "calls" if state == "over" else "calls that may change something"
        return f"the bundle that is served counted until {self.told}: {refused} are refused"

    @property
    def told(self) -> str | None:
        return None if self.until is None else self.until.isoformat(timespec="seconds").replace("+00:00", "Z")
