"""Callers, clocks and limits for the tests of counting, each with only the fields that a test needs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.model.caller import Principal
from gateway.policy.limits import LimitKey, QuotaLimit, RateLimit

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECOND = 1_000_000_000
ADA = LimitKey(Principal("user:ada", tenant="acme"), "search", "support")
BOB = ADA._replace(principal=Principal("user:bob", tenant="acme"))


class FakeClocks:
    """A wall clock and a nanosecond counter that show the times they are set to."""

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


def rate(limit: int = 3, rule: str = "fair-use", **changes: Any) -> RateLimit:
    return replace(RateLimit(rule, limit, timedelta(seconds=1)), **changes)


def quota(limit: int = 3, rule: str = "budget", **changes: Any) -> QuotaLimit:
    return replace(QuotaLimit(rule, limit, timedelta(days=1)), **changes)
