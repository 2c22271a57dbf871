"""Long answers: sent for as long as somebody is there to read them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from gateway.web.edge import Receive


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Run the work to its end, or until the client is gone. Servers take what is sent to nobody without a word."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        await asyncio.sleep(0)  # a server that never waits must not keep everybody else waiting
