"""A tool that says what it should not, to everybody who listens."""

import asyncio
import logging
import os


async def boom(text: str) -> str:
    async def fails() -> None:
        raise RuntimeError(f"nobody waits for {text}")

    logging.getLogger("vendor.sdk").error("sent %s with %s", text, os.environ["VENDOR_KEY"])
    task = asyncio.ensure_future(fails())
    await asyncio.wait({task})
    del task
    raise ValueError(f"cannot do {text}")
