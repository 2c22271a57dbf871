"""A way to a server on which every answer takes its time: bytes as they are, whatever they mean."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from time import sleep


class SlowWay:
    """Listens on a port of its own, in threads. `slowness` is how many seconds each piece of an answer is kept back."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._door = socket.create_server(("127.0.0.1", 0))
        self._ends: set[socket.socket] = set()
        self._lock = Lock()
        self.port: int = self._door.getsockname()[1]
        self.slowness = 0.0
        self.is_shut = False
        """Whether nobody is let through any more."""
        Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """Whoever is connected is cut off; others may come."""
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
def slow_way(to: int) -> Iterator[SlowWay]:
    way = SlowWay(to)
    try:
        yield way
    finally:
        way.close()
