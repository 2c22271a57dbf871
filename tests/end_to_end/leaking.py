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


class Spilled(Exception):
    """Says all it knows, however it is looked at."""

    def __init__(self, *secrets: str) -> None:
        super().__init__(*secrets)
        self.add_note(f"a note about {secrets}")

    def __repr__(self) -> str:
        return f"Spilled({', '.join(self.args)})"


def spill(text: str) -> str:
    try:
        raise KeyError(text)
    except KeyError as error:
        raise Spilled(text, os.environ.get("VENDOR_KEY", "not here")) from error
