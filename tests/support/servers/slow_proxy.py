"""A TCP proxy that delays every answer and leaves its bytes unchanged."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from time import sleep


class SlowProxy:
    """Listens on a free port, in threads. `slowness` is the delay in seconds for each piece of an answer."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._door = socket.create_server(("127.0.0.1", 0))
        self._ends: set[socket.socket] = set()
        self._lock = Lock()
        self.port: int = self._door.getsockname()[1]
        self.slowness = 0.0
        self.is_shut = False
        """Whether new connections are refused."""
        Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """Close all connections; new ones are allowed."""
        with self._lock:
            for each in self._ends:
                _shut(each)

    def close(self) -> None:
        _shut(self._door)
        self._door.close()
        self.cut()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._door.accept()
                if self.is_shut:
                    here.close()
                    continue
                Thread(target=self._carry, args=(here,), daemon=True).start()

    def _carry(self, here: socket.socket) -> None:
        with here, suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as there:
            with self._lock:
                self._ends |= {here, there}
            back = Thread(target=self._pump, args=(there, here), kwargs={"is_answer": True}, daemon=True)
            back.start()
            self._pump(here, there, is_answer=False)
            back.join()
            with self._lock:
                self._ends -= {here, there}

    def _pump(self, source: socket.socket, sink: socket.socket, *, is_answer: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                if is_answer and self.slowness:
                    sleep(self.slowness)
                sink.sendall(piece)
        _shut(source)
        _shut(sink)


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


@contextmanager
def start_slow_proxy(to: int) -> Iterator[SlowProxy]:
    way = SlowProxy(to)
    try:
        yield way
    finally:
        way.close()
