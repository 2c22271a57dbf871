"""Rates in a table that the processes of one host share: a file of fixed size, never synced.

    head   word · secret · last moment · offset       (one page)
    sets   of 32 places each: digest of the key · moment at which its bucket is full again

A bucket that is full again is an empty place, so nothing is ever pruned, and invented callers do not make the file
grow. A set without an empty place refuses: no call is let through that was not counted. The digest is keyed by the
file's secret, so nobody can choose callers that fall into one set.

Measured against the same count in an SQLite file with `synchronous=OFF` (`benchmarks/limits.py`): a little less
processor time, and when two processes count at once the slowest count takes 10 ms instead of 100 to 500, because SQLite
sleeps ever longer between its attempts and one process starves. Leases of tokens per process would be cheaper, but
what one process does not use of its lease is refused to the others, and a lease is more than 1 % of a small limit.
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from time import monotonic_ns
from typing import Final

from gateway.errors import StoreUnavailable
from gateway.governance.limits import CountedCall, Exceeded, Limit, Rate, Taken
from gateway.limits.buckets import bucket_of
from gateway.limits.keys import key_of
from gateway.storage.host_files import HostFile, unreadable

SETS: Final = 1 << 13
PLACES: Final = 32

_WORD: Final = b"agwrate1"
_PAGE: Final = 4096
_DIGEST: Final = 16
_HEAD: Final = Struct("<8s16s")
_TIME: Final = Struct("<qq")
_PLACE: Final = Struct("<16sq")
_MOMENTS: Final = Struct("<" + "16xq" * PLACES)
_SET: Final = PLACES * _PLACE.size

_SECOND: Final = 1_000_000_000
_NOTED_EVERY: Final = _SECOND // 10
_SET_BACK: Final = _SECOND
"""A clock that is further behind the last moment was set back; one that is less was read before another process's."""


class RateTable:
    """Implements `gateway.limits.limiter.Rates`. The clock is one that all processes of the host share."""

    def __init__(self, database: Path, *, clock: Callable[[], int] = monotonic_ns, sets: int = SETS) -> None:
        self._path = database.with_name(f"{database.name}-rates")
        self._clock = clock
        self._sets = sets
        self._size = _PAGE + sets * _SET
        self._secret = b""
        self._file = HostFile(self._path, self._set_up, beside=database)

    def take(self, rates: Sequence[Rate], call: CountedCall) -> Taken:
        keys = [key_of(rate, call) for rate in rates]
        try:
            with self._file as file:
                return self._take(file, rates, keys)
        except OSError as error:
            raise unreadable(self._path, error) from error

    def give_back(self, rates: Sequence[Rate], call: CountedCall) -> None:
        keys = [key_of(rate, call) for rate in rates]
        try:
            with self._file as file:
                for rate, key in zip(rates, keys, strict=True):
                    self._give_back(file, rate, self._digest(key))
        except OSError as error:
            raise unreadable(self._path, error) from error

    def close(self) -> None:
        self._file.close()

    def _take(self, file: int, rates: Sequence[Rate], keys: Sequence[bytes]) -> Taken:
        now = self._now(file)
        writes: list[tuple[int, bytes]] = []
        taken: list[Limit] = []
        refusing: list[Exceeded] = []
        for rate, key in zip(rates, keys, strict=True):
            bucket = bucket_of(rate)
            digest = self._digest(key)
            place, full_at = self._place(file, digest, now, besides=writes)
            wait = full_at - now if place is None else bucket.wait(full_at, now)
            if place is None or wait:
                refusing.append(Exceeded(rate, _rounded_up(wait)))
                continue
            writes.append((place, _PLACE.pack(digest, bucket.taken(full_at, now))))
            taken.append(rate)
        exceeded = tuple([each for each in refusing if each.limit.enforced])
        observed = tuple([each for each in refusing if not each.limit.enforced])
        if exceeded:
            return Taken(exceeded, observed)
        for place, content in writes:
            os.pwrite(file, content, place)
        return Taken((), observed, tuple(taken))

    def _give_back(self, file: int, rate: Rate, digest: bytes) -> None:
        start, content = self._set_of(file, digest)
        at = _found(content, digest)
        if at is not None:
            _, full_at = _PLACE.unpack_from(content, at)
            os.pwrite(file, _PLACE.pack(digest, full_at - bucket_of(rate).interval), start + at)

    def _place(
        self, file: int, digest: bytes, now: int, *, besides: Sequence[tuple[int, bytes]]
    ) -> tuple[int | None, int]:
        """Where a bucket is or could be, and when it is full; without a place, when the first one will be free."""
        start, content = self._set_of(file, digest)
        at = _found(content, digest)
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
            raise unreadable(self._path)
        return start, content

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=_DIGEST, key=self._secret).digest()

    def _now(self, file: int) -> int:
        """A clock that goes on where it was when the real one is set back, as it is when the machine restarts.

        Buckets then neither fill at once nor stay empty for as long as the machine had been up.
        """
        times = os.pread(file, _TIME.size, _HEAD.size)
        if len(times) < _TIME.size:
            raise unreadable(self._path)
        last: int
        offset: int
        last, offset = _TIME.unpack(times)
        now = self._clock() + offset
        if now < last - _SET_BACK:
            now, offset = last, offset + last - now
            os.pwrite(file, _TIME.pack(last, offset), _HEAD.size)
        elif now > last + _NOTED_EVERY:
            os.pwrite(file, _TIME.pack(now, offset), _HEAD.size)
        return now

    def _set_up(self, file: int) -> None:
        word, secret = _HEAD.unpack(os.pread(file, _HEAD.size, 0).ljust(_HEAD.size, b"\0"))
        if word == b"\0" * len(_WORD):  # new, or its maker died before it had written the head, which comes last
            secret = os.urandom(_DIGEST)
            os.posix_fallocate(file, 0, self._size)  # so that a full disk is told of now, not later
            os.pwrite(file, _TIME.pack(self._clock(), 0), _HEAD.size)
            os.pwrite(file, _HEAD.pack(_WORD, secret), 0)
        elif word != _WORD or os.fstat(file).st_size != self._size:
            raise StoreUnavailable(
                f"{self._path.name} beside the database has another layout", help="remove it; a new one is made"
            )
        self._secret = secret


def _found(content: bytes, digest: bytes) -> int | None:
    at = content.find(digest)
    while at % _PLACE.size and at >= 0:  # half of one place and half of the next can look alike
        at = content.find(digest, at + 1)
    return None if at < 0 else at


def _rounded_up(nanoseconds: int) -> timedelta:
    return timedelta(microseconds=-(-nanoseconds // 1000))
