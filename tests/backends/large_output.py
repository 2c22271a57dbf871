"""A program for tests: makes one call with a huge result, then prints the received size and the memory used.

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

from gateway.artifacts.spool_stores import InMemoryReader, iter_chunks
from gateway.backends.command.backend import Command, CommandBackend
from gateway.backends.command.child_process import HostControls
from gateway.backends.http.backend import HttpBackend, HttpRequest
from gateway.http_client.pool import HttpConnections
from gateway.model.tools.artifact import SpoolReader
from gateway.model.tools.backend import Backend, BackendError
from tests.backends.invocations import invocation

SIZE = 1 << 30


class Counter:
    """A spool that only counts, so that the disk is not measured."""

    def __init__(self) -> None:
        self.size = 0

    async def keep(self, content: AsyncIterable[bytes] | Iterable[bytes] | bytes) -> SpoolReader:
        async for chunk in iter_chunks(content):
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
    """Peak memory in kilobytes of this program alone, as counted by the kernel; `getrusage` includes its parent's."""
    found = re.search(rf"{name}:\s+([0-9]+)", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1])


async def main(kind: str) -> None:
    connections, counter = HttpConnections(), Counter()
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
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak
        before = memory("VmRSS")
        try:
            await backend.run(call)
        except BackendError as failed:
            print(failed.message, file=sys.stderr)
        print(counter.size, memory("VmHWM") - before)
        await connections.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
