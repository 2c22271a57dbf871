"""A backend of an upstream's tool whose arguments a document has shaped."""

from dataclasses import replace
from typing import Any

from gateway.governance.ports import Backend, Invocation
from gateway.governance.shaping import Shaping


class ShapedBackend:
    """Gives the backend inside what the upstream takes, for what callers gave."""

    def __init__(self, inner: Backend, shaping: Shaping) -> None:
        self._inner = inner
        self._shaping = shaping

    async def run(self, call: Invocation) -> Any:
        return await self._inner.run(replace(call, args=self._shaping.arguments(call.args)))

    async def close(self) -> None:
        await self._inner.close()
