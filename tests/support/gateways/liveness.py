"""A program that polls `/livez` and prints the duration of each answer when its input ends."""

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REQUEST = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PAUSE = 0.02


def ask(port: int) -> float:
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(REQUEST)
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    took = time.perf_counter() - begun
    return took if answer.startswith(b"HTTP/1.1 200") else float("inf")


class LivenessTimes:
    """The durations of the answers in seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def quantile(self, part: float) -> float:
        return sorted(self.seconds)[int(part * (len(self.seconds) - 1))]


@contextmanager
def poll_liveness(url: str) -> Iterator[LivenessTimes]:
    """Poll `/livez` from another process during the block; the durations are available afterwards."""
    found = LivenessTimes()
    command = [sys.executable, str(Path(__file__)), url.rpartition(":")[2]]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield found
    finally:
        output, _ = process.communicate(timeout=120)
    found.seconds = json.loads(output)


def main(port: int) -> None:
    seconds: list[float] = []
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        seconds.append(ask(port))
    seconds.append(ask(port))
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(int(sys.argv[1]))
