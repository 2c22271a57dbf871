"""A tool that leaks secrets through every channel."""

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


class LeakError(Exception):
    """Contains secrets in every representation."""

    def __init__(self, *secrets: str) -> None:
        super().__init__(*secrets)
        self.add_note(f"a note about {secrets}")

    def __repr__(self) -> str:
        return f"LeakError({', '.join(self.args)})"


def spill(text: str) -> str:
    try:
        raise KeyError(text)
    except KeyError as error:
        raise LeakError(text, os.environ.get("VENDOR_KEY", "not here")) from error
