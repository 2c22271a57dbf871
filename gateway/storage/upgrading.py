"""Upgrading an SQLite file in a process of its own: what that takes would stay in memory as long as a gateway serves.

Started by a gateway that finds a file of an earlier version, or none. Whatever goes wrong is told by whoever opens the
file next: that one tries again.
"""

import asyncio
import sqlite3
import sys
from asyncio.subprocess import DEVNULL
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from gateway.errors import GatewayError
from gateway.storage.migrating import version_of, versions
from gateway.storage.opening import prepare


async def upgrade_apart(path: Path) -> None:
    if "alembic" in sys.modules or await asyncio.to_thread(_is_current, path):
        return
    command = (sys.executable, "-m", "gateway.storage.upgrading", str(path))
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    except OSError:  # no process can be started: this one does it
        return
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _is_current(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
            return version_of(connection) == versions()[-1]
    except sqlite3.Error:
        return False


def main() -> None:
    try:
        prepare(Path(sys.argv[1])).release()
    except GatewayError:
        sys.exit(1)


if __name__ == "__main__":
    main()
