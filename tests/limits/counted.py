"""Callers, clocks and limits for the tests of counting, each with only what a test is about filled in."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.governance.limits import CountedCall, Quota, Rate
from gateway.governance.principals import Principal

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECOND = 1_000_000_000
ADA = CountedCall(Principal("user:ada", tenant="acme"), "search", "support")
BOB = replace(ADA, principal=Principal("user:bob", tenant="acme"))


class Clocks:
    """A wall clock and a counter of nanoseconds that show what they are set to."""

    def __init__(self) -> None:
        self.moment = NOON
        self.nanoseconds = 10**15

    def wall(self) -> datetime:
        return self.moment

    def counter(self) -> int:
        return self.nanoseconds

    def advance(self, duration: timedelta) -> None:
        self.moment += duration
        self.nanoseconds += duration // timedelta(microseconds=1) * 1000


def rate(limit: int = 3, rule: str = "fair-use", **changes: Any) -> Rate:
    return replace(Rate(rule, limit, timedelta(seconds=1)), **changes)


def quota(limit: int = 3, rule: str = "budget", **changes: Any) -> Quota:
    return replace(Quota(rule, limit, timedelta(days=1)), **changes)
