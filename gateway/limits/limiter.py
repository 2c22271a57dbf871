"""All limits of a call at once: rates first, which cost nothing, then quotas, which write.

It knows neither files nor databases; rates and quotas are kept by whoever is given.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from gateway.governance.limits import CountedCall, Limit, Quota, Rate, Taken

_NOTHING: Final = Taken()


class Rates(Protocol):
    """Never waits: what it keeps is in memory, and may be lost."""

    def take(self, rates: Sequence[Rate], call: CountedCall) -> Taken: ...

    def give_back(self, rates: Sequence[Rate], call: CountedCall) -> None: ...

    def close(self) -> None: ...


class Quotas(Protocol):
    """Returns when it is durable. A caller that is cancelled has taken nothing."""

    async def take(self, quotas: Sequence[Quota], call: CountedCall) -> Taken: ...

    async def give_back(self, quotas: Sequence[Quota], call: CountedCall, *, at: datetime) -> None: ...

    async def charge(self, quotas: Sequence[Quota], call: CountedCall, amount: int) -> None: ...

    async def prune(self, *, kept: timedelta | None = None) -> int: ...


class Limiter:
    """Implements `gateway.governance.limits.Limits`."""

    def __init__(self, rates: Rates, quotas: Quotas) -> None:
        self._rates = rates
        self._quotas = quotas

    async def take(self, limits: Sequence[Limit], call: CountedCall) -> Taken:
        rates = [limit for limit in limits if isinstance(limit, Rate)]
        by_rates = self._rates.take(rates, call) if rates else _NOTHING
        if not by_rates.allowed or len(rates) == len(limits):
            return by_rates
        quotas = [limit for limit in limits if isinstance(limit, Quota)]
        try:
            by_quotas = await self._quotas.take(quotas, call)
        except BaseException:
            self._give_back_rates(by_rates, call)
            raise
        observed = by_rates.observed + by_quotas.observed
        if not by_quotas.allowed:
            self._give_back_rates(by_rates, call)
            return Taken(by_quotas.exceeded, observed)
        return Taken((), observed, by_rates.taken + by_quotas.taken, by_quotas.at)

    async def give_back(self, taken: Taken, call: CountedCall) -> None:
        self._give_back_rates(taken, call)
        quotas = [limit for limit in taken.taken if isinstance(limit, Quota)]
        if quotas and taken.at is not None:
            await self._quotas.give_back(quotas, call, at=taken.at)

    async def charge(self, quotas: Sequence[Quota], call: CountedCall, amount: int) -> None:
        await self._quotas.charge(quotas, call, amount)

    async def prune(self, *, kept: timedelta | None = None) -> int:
        return await self._quotas.prune(kept=kept)

    def close(self) -> None:
        self._rates.close()

    def _give_back_rates(self, taken: Taken, call: CountedCall) -> None:
        rates = [limit for limit in taken.taken if isinstance(limit, Rate)]
        if rates:
            self._rates.give_back(rates, call)
