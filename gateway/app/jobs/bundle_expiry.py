"""The job that logs when the served bundle expires."""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from gateway.policy import Validity, ValidityState

_CHECK_EVERY: Final = 1.0
"""Seconds between two checks. The clock may be set and the bundle replaced, so one long sleep would not do."""
_log: Final = logging.getLogger(__name__)


class BundleExpiryMonitor:
    """Logs once that the served bundle expires soon, and once that it has expired."""

    def __init__(self, validity: Validity) -> None:
        self._validity = validity
        self._logged: ValidityState = "current"
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def check(self) -> None:
        """Log the state if it changed. A replaced bundle starts again as current."""
        state = self._validity.state
        if state != self._logged and (problem := self._validity.problem) is not None:
            _log.log(logging.WARNING if state == "ending" else logging.ERROR, "%s", problem)
        self._logged = state

    async def _run(self) -> None:
        while True:
            self.check()
            await asyncio.sleep(_CHECK_EVERY)
