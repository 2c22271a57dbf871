"""A program for tests: one call with a huge result, then how much of it came and the memory it took.

`large_output.py command|http|bomb`
"""

import asyncio
import gzip
import re
import sys
import threading
from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from socket import create_server, socket

from invocations import invocation

from gateway.backends.command import Command, CommandBackend
from gateway.backends.connections import Connections
from gateway.backends.http import HttpBackend, HttpRequest
from gateway.backends.processes import HostControls
from gateway.core.spool import InMemoryReader, SpoolReader, chunks_of
from gateway.governance.ports import Backend, BackendFailed

SIZE = 1 << 30


class Counter:
    """A spool that only counts, so that no disk is measured."""

    def __init__(self) -> None:
        self.size = 0

    async def keep(self, content: AsyncIterable[bytes] | Iterable[bytes]) -> SpoolReader:
        async for chunk in chunks_of(content):
            self.size += len(chunk)
        return InMemoryReader(b"")


def serve(server: socket, chunk: bytes, header: str) -> None:
    connection, _ = server.accept()
    with connection, suppress(ConnectionError):
        connection.recv(1 << 16)
        connection.sendall(f"HTTP/1.1 200 OK\r\n{header}\r\n\r\n".encode())
        sent = 0
        while sent < SIZE:
            sent += connection.send(chunk[: SIZE - sent])


def memory(name: str) -> int:
    """Kilobytes, as the kernel counts them for this very program; `getrusage` counts its parent's, too."""
    found = re.search(rf"{name}:\s+([0-9]+)", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1])


async def main(kind: str) -> None:
    connections, counter = Connections(), Counter()
    with create_server(("127.0.0.1", 0)) as server:
        backend: Backend
        if kind != "command":
            bomb = (gzip.compress(bytes(32 << 20)), "Content-Encoding: gzip")
            content = bomb if kind == "bomb" else (b"some output\n" * 5000, f"Content-Length: {SIZE}")
            threading.Thread(target=serve, args=(server, *content), daemon=True).start()
            backend = HttpBackend(HttpRequest("GET", f"http://127.0.0.1:{server.getsockname()[1]}/"), connections)
        else:
            argv = ("/usr/bin/head", "-c", str(SIZE), "/dev/zero")
            backend = CommandBackend(Command(argv, network="host", readable=("/",), writable=("/",)), HostControls())
        call = replace(invocation({}), keep=counter.keep)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
        before = memory("VmRSS")
        try:
            await backend.run(call)
        except BackendFailed as failed:
            print(failed.message, file=sys.stderr)
        print(counter.size, memory("VmHWM") - before)
        await connections.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
