"""Results of an upstream's tool, looked at before they count: whether they are the JSON that was promised of them."""

from asyncio import to_thread
from typing import Any, Final

from gateway.core.lines import IndexedReader, encode
from gateway.core.promises import MAX_PROMISED, NOTHING, Promise, parsed
from gateway.governance.ports import Backend, BackendFailed, Invocation

_SHORT: Final = 1 << 16
"""Bytes up to which nobody notices that they are read in the loop: they are in memory still."""


class OutputMismatch(BackendFailed):
    """A tool ran, and gave something else than its definition promises. It may have had its effect."""

    code = "E_OUTPUT_MISMATCH"

    def __init__(self, why: str) -> None:
        help = "tell whoever runs the upstream; import: {outputSchemas: ignore} takes its results as they come"
        super().__init__("failed", f"the tool ran, but its result does not fit its output schema: {why}", help=help)


class PromisedBackend:
    """The backend inside gives JSON: text, bytes, or what reads them. Anything else breaks the promise."""

    def __init__(self, inner: Backend, promise: Promise) -> None:
        self._inner = inner
        self._promise = promise

    async def run(self, call: Invocation) -> Any:
        result = await self._inner.run(call)
        value = await _value(result)
        if not self._promise.is_kept(value):
            raise OutputMismatch(self._promise.broken(value))
        return result

    async def close(self) -> None:
        await self._inner.close()


async def _value(result: Any) -> Any:
    if isinstance(result, IndexedReader):
        size = result.byte_length()
        if size > MAX_PROMISED:
            return NOTHING
        result = result.read_range(0, size) if size <= _SHORT else await to_thread(result.read_range, 0, size)
    content = encode(result) if isinstance(result, str) else result
    return parsed(content) if isinstance(content, bytes) else NOTHING
