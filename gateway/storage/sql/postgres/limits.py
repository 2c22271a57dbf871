"""Rates and quotas of all gateways together, counted in the database: one row for each bucket and each window.

A call takes all of its limits or none, in one transaction that has locked them. Buckets fill by the server's clock.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from gateway.policy import (
    ExceededLimit,
    Limit,
    LimitKey,
    LimitReservation,
    QuotaLimit,
    RateLimit,
    encode_limit_key,
)
from gateway.storage.sql.group_commit import GroupCommit
from gateway.storage.sql.lock_keys import Footprint, limit_key
from gateway.storage.sql.quotas import QuotaReservation, SqlQuotas

_WITHIN: Final = 1.0
"""Seconds a call waits for its count; it has not run yet."""

_PRUNED_AT_ONCE: Final = 500

_NOW: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"
_FIND: Final = """
SELECT wanted.key, rates.full_at, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint
FROM unnest(?::bytea[]) AS wanted (key) LEFT JOIN rates ON rates.key = wanted.key
"""
"""With the clock: each query costs a round trip, and other processes wait meanwhile."""

_PUT: Final = "INSERT INTO rates VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET full_at = excluded.full_at"
_GIVE_BACK: Final = "UPDATE rates SET full_at = full_at - ? WHERE key = ?"
_PRUNE: Final = "DELETE FROM rates WHERE key IN (SELECT key FROM rates WHERE full_at < ? ORDER BY full_at LIMIT ?)"


class PostgresLimitStore:
    """Implements `gateway.policy.limits.LimitStore`. `counter` replaces the server's clock, in nanoseconds."""

    def __init__(
        self, writer: GroupCommit, *, clock: Callable[[], datetime], counter: Callable[[], int] | None = None
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._counter = counter
        self._quotas = SqlQuotas(writer, clock=clock)

    async def acquire(self, limits: Sequence[Limit], call: LimitKey) -> LimitReservation:
        if not limits:
            return LimitReservation()
        taking = _Taking(limits, call, at=self._clock(), counter=self._counter)
        return await self._writer.run(taking.run, within=_WITHIN, undo=taking.undo, footprint=taking.footprint)

    async def release(self, taken: LimitReservation, call: LimitKey) -> None:
        rates = [limit for limit in taken.taken if isinstance(limit, RateLimit)]
        quotas = [limit for limit in taken.taken if isinstance(limit, QuotaLimit)]
        if rates:
            await self._writer.run(
                lambda connection: _give_back(connection, rates, call), footprint=Footprint(_keys(rates, call))
            )
        if quotas and taken.at is not None:
            await self._quotas.give_back(quotas, call, at=taken.at)

    async def charge(self, quotas: Sequence[QuotaLimit], call: LimitKey, amount: int) -> None:
        await self._quotas.charge(quotas, call, amount)

    async def prune(self, *, kept: timedelta | None = None) -> int:
        pruned = await self._quotas.prune(kept=kept)
        while went := await self._writer.run(self._prune_some):
            pruned += went
        return pruned

    def close(self) -> None: ...

    def _prune_some(self, connection: Any) -> int:
        """Delete buckets that are full again."""
        now = _now(connection, self._counter)
        return int(connection.execute(_PRUNE, (now, _PRUNED_AT_ONCE)).rowcount)


class _Taking:
    def __init__(
        self, limits: Sequence[Limit], call: LimitKey, *, at: datetime, counter: Callable[[], int] | None
    ) -> None:
        self._counter = counter
        self._rates = [limit for limit in limits if isinstance(limit, RateLimit)]
        quotas = [limit for limit in limits if isinstance(limit, QuotaLimit)]
        self._call = call
        self._quotas = QuotaReservation(quotas, call, at=at) if quotas else None
        self._taken: list[RateLimit] = []
        quota_keys = self._quotas.footprint.keys if self._quotas is not None else ()
        self.footprint = Footprint((*_keys(self._rates, call), *quota_keys))

    def run(self, connection: Any) -> LimitReservation:
        self._taken = []
        by_rates, puts = self._by_rates(connection)
        if not by_rates.is_allowed:
            return by_rates
        taken = by_rates
        if self._quotas is not None:
            by_quotas = self._quotas.run(connection)
            taken = by_quotas._replace(observed=by_rates.observed + by_quotas.observed)
            if not by_quotas.is_allowed:
                return taken
            taken = taken._replace(taken=by_rates.taken + by_quotas.taken)
        for put in puts:
            connection.execute(_PUT, put)
        self._taken = [limit for limit in by_rates.taken if isinstance(limit, RateLimit)]
        return taken

    def undo(self, connection: Any) -> None:
        _give_back(connection, self._taken, self._call)
        if self._quotas is not None:
            self._quotas.undo(connection)

    def _by_rates(self, connection: Any) -> tuple[LimitReservation, list[tuple[bytes, int]]]:
        if not self._rates:
            return LimitReservation(), []
        keys = [_digest(rate, self._call) for rate in self._rates]
        found = connection.execute(_FIND, (keys,)).fetchall()
        moments = {bytes(key): full_at or 0 for key, full_at, _ in found}
        now: int = found[0][2] if self._counter is None else self._counter()
        refusing: list[ExceededLimit] = []
        taken: list[Limit] = []
        puts: list[tuple[bytes, int]] = []
        for rate, key in zip(self._rates, keys, strict=True):
            bucket, full_at = rate.bucket, moments.get(key, 0)
            if wait := bucket.wait_time(full_at, now):
                refusing.append(ExceededLimit(rate, timedelta(microseconds=-(-wait // 1000))))
            else:
                puts.append((key, bucket.take(full_at, now)))
                taken.append(rate)
        exceeded = tuple(each for each in refusing if each.limit.enforced)
        observed = tuple(each for each in refusing if not each.limit.enforced)
        return (
            (LimitReservation(exceeded, observed), [])
            if exceeded
            else (LimitReservation((), observed, tuple(taken)), puts)
        )


def _give_back(connection: Any, rates: Sequence[RateLimit], call: LimitKey) -> None:
    for rate in rates:
        connection.execute(_GIVE_BACK, (rate.bucket.interval, _digest(rate, call)))


def _keys(rates: Sequence[RateLimit], call: LimitKey) -> tuple[str, ...]:
    return tuple(limit_key(_digest(rate, call)) for rate in rates)


def _digest(rate: RateLimit, call: LimitKey) -> bytes:
    return sha256(encode_limit_key(rate, call)).digest()


def _now(connection: Any, counter: Callable[[], int] | None) -> int:
    return counter() if counter is not None else int(connection.execute(_NOW).fetchone()[0])
