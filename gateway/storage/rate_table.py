"""Rate limits in a table that the processes of one host share: a file of fixed size, never synced.

    head   word · secret · last time · offset       (one page)
    sets   of 32 slots each: digest of the key · time at which its bucket is full again

A bucket that is full again is an empty slot, so nothing is ever pruned, and invented callers do not make the file grow.
A set without an empty slot refuses calls: no call passes uncounted. The digest is keyed by the file's secret, so an
attacker cannot choose callers that fall into one set.

A process that calls often leases several calls of a bucket at once, and counts them in memory (`rate_leases.py`). The
unused part of a lease is refused to other processes, so it is returned a tenth of a second after its last use, and is
at most 1 % of a bucket that other processes use, too. Small buckets are leased call by call.

Compared with the same count in an SQLite file with `synchronous=OFF` (`benchmarks/limits.py`), the table takes a little
less processor time, and when two processes count at once the slowest count takes 10 ms instead of 100 to 500: SQLite
sleeps ever longer between its attempts, so one process starves.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from threading import Lock
from time import monotonic_ns
from typing import Final, TypeVar

from gateway.errors import StoreUnavailable
from gateway.policy import ExceededLimit, LimitKey, LimitReservation, RateLimit, encode_limit_key
from gateway.storage.rate_leases import IDLE_AFTER, MOST_LEASES, BucketLease, RateLeases, round_up, to_reservation
from gateway.storage.shared_file import SharedFile, unreadable_file_error

SETS: Final = 1 << 13
SLOTS_PER_SET: Final = 32

_WORD: Final = b"agwrate1"
_PAGE: Final = 4096
_DIGEST: Final = 16
_HEAD: Final = Struct("<8s16s")
_TIME: Final = Struct("<qq")
_PLACE: Final = Struct("<16sq")
_MOMENTS: Final = Struct("<" + "16xq" * SLOTS_PER_SET)
_SET: Final = SLOTS_PER_SET * _PLACE.size

_SECOND: Final = 1_000_000_000
_NOTED_EVERY: Final = _SECOND // 10
_SET_BACK: Final = _SECOND
"""A clock that is further behind the last time was set back; one that is less was read before another process's."""

T = TypeVar("T")


class RateTable:
    """Implements `gateway.policy.RateStore`. All processes of the host must share the clock."""

    def __init__(self, database: Path, *, clock: Callable[[], int] = monotonic_ns, sets: int = SETS) -> None:
        self._path = database.with_name(f"{database.name}-rates")
        self._clock = clock
        self._offset = 0
        self._sets = sets
        self._size = _PAGE + sets * _SET
        self._secret = b""
        self._leases = RateLeases()
        self._lock = Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._file = SharedFile(self._path, self._set_up, beside=database)

    def take(self, rates: Sequence[RateLimit], call: LimitKey) -> LimitReservation:
        keys = [encode_limit_key(rate, call) for rate in rates]
        with self._lock:
            taken = self._leases.take(rates, keys, self._clock() + self._offset)
            return taken or self._with_file(lambda file: self._take(file, rates, keys))

    def give_back(self, rates: Sequence[RateLimit], call: LimitKey) -> None:
        buckets = [(encode_limit_key(rate, call), rate.bucket) for rate in rates]
        with self._lock:
            now = self._clock() + self._offset
            stored = [(key, each.interval) for key, each in buckets if not self._leases.give_back(key, each, now)]
            if stored:
                self._with_file(lambda file: self._reduce(file, stored))

    def return_idle_leases(self) -> None:
        """Return what is left of leases that are not used any more. Without the table, they run out by themselves."""
        with self._lock, suppress(StoreUnavailable):
            self._timer = None
            self._with_file(self._return_idle)

    def close(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            unused = list(self._leases.pop_all(self._clock() + self._offset))
            with suppress(StoreUnavailable):
                if unused:
                    self._with_file(lambda file: self._reduce(file, unused))
            self._file.close()

    def _with_file(self, work: Callable[[int], T]) -> T:
        try:
            with self._file as file:
                return work(file)
        except OSError as error:
            raise unreadable_file_error(self._path, error) from error

    def _take(self, file: int, rates: Sequence[RateLimit], keys: Sequence[bytes]) -> LimitReservation:
        now = self._now(file)
        writes: list[tuple[int, bytes]] = []
        leases: list[tuple[bytes, BucketLease]] = []
        refusing: list[ExceededLimit] = []
        for rate, key in zip(rates, keys, strict=True):
            digest = self._digest(key)
            place, stored = self._place(file, digest, now, besides=writes)
            if place is None:
                refusing.append(ExceededLimit(rate, round_up(stored - now)))
                continue
            full_at = stored - self._leases.count_unused(key, now)
            if wait := rate.bucket.wait_time(full_at, now):
                refusing.append(ExceededLimit(rate, round_up(wait)))
                self._leases.refuse(key, full_at, now)
                continue
            lease = self._leases.build(key, rate, stored=stored, full_at=full_at, now=now)
            writes.append((place, _PLACE.pack(digest, lease.reserved)))
            leases.append((key, lease))
        result = to_reservation(rates, refusing)
        if result.is_allowed:
            for place, content in writes:
                os.pwrite(file, content, place)
            self._leases.add(leases)
        if len(self._leases) > MOST_LEASES:
            self._reduce(file, self._leases.pop_all(now))
        self._expect_return()
        return result

    def _reduce(self, file: int, amounts: Iterable[tuple[bytes, int]]) -> None:
        """Let buckets be full that much earlier. A bucket that is full already may be gone."""
        for key, amount in amounts:
            digest = self._digest(key)
            start, content = self._set_of(file, digest)
            at = _find_digest(content, digest)
            if at is not None:
                _, full_at = _PLACE.unpack_from(content, at)
                os.pwrite(file, _PLACE.pack(digest, full_at - amount), start + at)

    def _return_idle(self, file: int) -> None:
        self._reduce(file, self._leases.pop_idle(self._now(file)))
        self._expect_return()

    def _expect_return(self) -> None:
        """Return idle leases in a while, whether or not this process makes another call."""
        if self._timer is None and self._leases:
            with suppress(RuntimeError):  # without an event loop, they are returned when the table is closed
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(IDLE_AFTER / _SECOND, self.return_idle_leases)

    def _place(
        self, file: int, digest: bytes, now: int, *, besides: Sequence[tuple[int, bytes]]
    ) -> tuple[int | None, int]:
        """Return the slot of a bucket and when it is full, or `None` and when the first slot will be free."""
        start, content = self._set_of(file, digest)
        at = _find_digest(content, digest)
        if at is not None:
            _, full_at = _PLACE.unpack_from(content, at)
            return start + at, full_at
        moments = _MOMENTS.unpack(content)
        spoken_for = {place for place, _ in besides}
        for number, moment in enumerate(moments):
            place = start + number * _PLACE.size
            if moment <= now and place not in spoken_for:
                return place, 0
        return None, min((moment for moment in moments if moment > now), default=now + 1)

    def _set_of(self, file: int, digest: bytes) -> tuple[int, bytes]:
        start = _PAGE + int.from_bytes(digest[:4], "little") % self._sets * _SET
        content = os.pread(file, _SET, start)
        if len(content) < _SET:
            raise unreadable_file_error(self._path)
        return start, content

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=_DIGEST, key=self._secret).digest()

    def _now(self, file: int) -> int:
        """Return a time that never goes back, as the real clock does when the machine restarts.

        Otherwise buckets would fill at once, or stay empty for as long as the machine had been up.
        """
        times = os.pread(file, _TIME.size, _HEAD.size)
        if len(times) < _TIME.size:
            raise unreadable_file_error(self._path)
        last: int
        offset: int
        last, offset = _TIME.unpack(times)
        now = self._clock() + offset
        if now < last - _SET_BACK:
            now, offset = last, offset + last - now
            os.pwrite(file, _TIME.pack(last, offset), _HEAD.size)
        elif now > last + _NOTED_EVERY:
            os.pwrite(file, _TIME.pack(now, offset), _HEAD.size)
        self._offset = offset
        return now

    def _set_up(self, file: int) -> None:
        word, secret = _HEAD.unpack(os.pread(file, _HEAD.size, 0).ljust(_HEAD.size, b"\0"))
        if word == b"\0" * len(_WORD):  # new, or its creator died before it wrote the head, which comes last
            secret = os.urandom(_DIGEST)
            os.posix_fallocate(file, 0, self._size)  # so that a full disk fails now, not later
            os.pwrite(file, _TIME.pack(self._clock(), 0), _HEAD.size)
            os.pwrite(file, _HEAD.pack(_WORD, secret), 0)
        elif word != _WORD or os.fstat(file).st_size != self._size:
            raise StoreUnavailable(
                f"{self._path.name} beside the database has another layout", help="remove it; a new one is made"
            )
        self._leases.clear()  # another file has not counted what is leased
        self._secret = secret


def _find_digest(content: bytes, digest: bytes) -> int | None:
    at = content.find(digest)
    while at % _PLACE.size and at >= 0:  # half of one place and half of the next can look alike
        at = content.find(digest, at + 1)
    return None if at < 0 else at
