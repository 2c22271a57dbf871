"""Says in the log that a bundle comes to its end while it is served: once when it is near, once when it is there."""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from gateway.governance.validity import State, Validity

_LOOK_EVERY: Final = 1.0
"""Seconds. Somebody may set the clock, or put something else in force, so nobody sleeps until the end itself."""
_log: Final = logging.getLogger(__name__)


class Expiring:
    def __init__(self, validity: Validity) -> None:
        self._validity = validity
        self._told: State = "current"
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._look())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def look(self) -> None:
        """Say it, if it was not said yet. What came into force instead begins anew."""
        state = self._validity.state
        if state != self._told and (problem := self._validity.problem) is not None:
            _log.log(logging.WARNING if state == "ending" else logging.ERROR, "%s", problem)
        self._told = state

    async def _look(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_LOOK_EVERY)
