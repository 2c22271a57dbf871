"""Recovery from SIGBUS: the process survives when a disk fails beneath SQLite's shared memory.

SQLite maps one file, `<database>-shm`. When its file system turns read-only, fills up or is gone, the next access to
the mapping does not return an error but raises SIGBUS, which ends the process with every call in it. No setting of
SQLite prevents that as long as several processes use one write-ahead log.

So the handler replaces the failed mapping by a private copy, the access is repeated there, and SQLite then fails in the
ordinary way, because the files cannot be written. Connections compare `fault_count`: after a fault their memory is not
shared any more, so they are closed, and none is opened before all of them are.
A gateway maps no other file that is written to. For any other address the signal ends the process.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from threading import Lock
from typing import Any, Final

_SA_SIGINFO: Final = 4
_READ_WRITE: Final = 3
_PRIVATE_ANONYMOUS: Final = 0x22
_MOVE_TO: Final = 3
"""`mremap` to a fixed address replaces the old mapping: no thread sees the place empty."""
_ADDRESS_AT: Final = 16
"""Offset of the address in `siginfo_t`, on Linux with 64 bits."""
_FAILED: Final = ctypes.c_void_p(-1).value

_Handler: Final = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """`struct sigaction` of glibc and musl."""

    _fields_ = (
        ("handler", _Handler),
        ("mask", ctypes.c_uint8 * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _SharedMemoryFaults:
    """One per process: a signal has one handler."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = Lock()
        self._kept: list[Any] = []  # the handler must outlive every signal
        self._open: dict[int, int] = {}

    def install(self) -> None:
        with self._lock:
            if self._kept or sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
                return
            libc = _libc()
            action = _Action(_Handler(self._handler(libc)), flags=_SA_SIGINFO)
            if libc.sigaction(signal.SIGBUS, ctypes.byref(action), None) == 0:
                self._kept += [libc, action]

    def add_connection(self) -> int | None:
        """Count a connection. Return the number of faults, or `None` while an older connection is open."""
        with self._lock:
            if any(count for faults, count in self._open.items() if faults != self.count):
                return None
            self._open[self.count] = self._open.get(self.count, 0) + 1
            return self.count

    def remove_connection(self, faults: int) -> None:
        with self._lock:
            self._open[faults] -= 1
            if not self._open[faults]:
                del self._open[faults]

    def _handler(self, libc: Any) -> Callable[[int, int, int], None]:
        """Return the handler. It runs in the thread of the failed access, which does not hold the interpreter lock."""

        def handle(number: int, info: int, context: int) -> None:
            try:
                address = ctypes.c_void_p.from_address(info + _ADDRESS_AT).value or 0
                is_exchanged = _exchange(libc, address)
            except BaseException:  # whatever it is, the access must not be repeated for ever
                is_exchanged = False
            if is_exchanged:
                self.count += 1
            else:
                libc.signal(number, None)  # the access is repeated, and ends the process

        return handle


_FAULTS: Final = _SharedMemoryFaults()


def survive_bus_errors() -> None:
    """Install the handler, in processes that serve from an SQLite file. Does nothing where it does not work."""
    _FAULTS.install()


def fault_count() -> int:
    return _FAULTS.count


def add_connection() -> int | None:
    return _FAULTS.add_connection()


def remove_connection(faults: int) -> None:
    _FAULTS.remove_connection(faults)


def _exchange(libc: Any, address: int) -> bool:
    found = _find_mapping(address)
    if found is None:
        return False
    start, size, offset, path = found
    private = libc.mmap(None, size, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if private == _FAILED:
        return False
    content = _content(path, offset, size)
    ctypes.memmove(private, content, len(content))
    return bool(libc.mremap(private, size, size, _MOVE_TO, start) == start)


def _find_mapping(address: int) -> tuple[int, int, int, str] | None:
    """Return start, size, offset and file of the mapping at an address, if it is SQLite's."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            place, _, offset, _, _, *path = line.split(maxsplit=5)
            start, end = (int(each, 16) for each in place.split("-"))
            if start <= address < end:
                name = path[0].rstrip("\n").removesuffix(" (deleted)") if path else ""
                return (start, end - start, int(offset, 16), name) if name.endswith("-shm") else None
    return None


def _content(path: str, offset: int, size: int) -> bytes:
    """Return a part of the file, as far as it can be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(file, size, offset)
    except OSError:
        return b""
    finally:
        os.close(file)


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int),
        *(ctypes.c_int, ctypes.c_long),
    )
    libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    return libc
