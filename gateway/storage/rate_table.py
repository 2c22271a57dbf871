"""Rate limits in a table that the processes of one host share: a file of fixed size, never synced.

    head   word · secret · last time · offset       (one page)
    sets   of 32 slots each: digest of the key · time at which its bucket is full again

A bucket that is full again is an empty slot, so nothing is ever pruned, and invented callers do not make the file grow.
A set without an empty slot refuses calls: no call passes uncounted. The digest is keyed by the file's secret, so an
attacker cannot choose callers that fall into one set.

Compared with the same count in an SQLite file with `synchronous=OFF` (`benchmarks/limits.py`), it takes a little less
processor time, and when two processes count at once the slowest count takes 10 ms instead of 100 to 500: SQLite sleeps
ever longer between its attempts, so one process starves. Token leases per process would be cheaper, but the unused part
of a lease is refused to the other processes, and a lease is more than 1 % of a small limit.
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
from gateway.policy import ExceededLimit, Limit, LimitKey, LimitReservation, RateLimit, build_bucket, encode_limit_key
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


class RateTable:
    """Implements `gateway.policy.limits.Rates`. All processes of the host must share the clock."""

    def __init__(self, database: Path, *, clock: Callable[[], int] = monotonic_ns, sets: int = SETS) -> None:
        self._path = database.with_name(f"{database.name}-rates")
        self._clock = clock
        self._sets = sets
        self._size = _PAGE + sets * _SET
        self._secret = b""
        self._file = SharedFile(self._path, self._set_up, beside=database)

    def take(self, rates: Sequence[RateLimit], call: LimitKey) -> LimitReservation:
        keys = [encode_limit_key(rate, call) for rate in rates]
        try:
            with self._file as file:
                return self._take(file, rates, keys)
        except OSError as error:
            raise unreadable_file_error(self._path, error) from error

    def give_back(self, rates: Sequence[RateLimit], call: LimitKey) -> None:
        keys = [encode_limit_key(rate, call) for rate in rates]
        try:
            with self._file as file:
                for rate, key in zip(rates, keys, strict=True):
                    self._give_back(file, rate, self._digest(key))
        except OSError as error:
            raise unreadable_file_error(self._path, error) from error

    def close(self) -> None:
        self._file.close()

    def _take(self, file: int, rates: Sequence[RateLimit], keys: Sequence[bytes]) -> LimitReservation:
        now = self._now(file)
        writes: list[tuple[int, bytes]] = []
        taken: list[Limit] = []
        refusing: list[ExceededLimit] = []
        for rate, key in zip(rates, keys, strict=True):
            bucket = build_bucket(rate)
            digest = self._digest(key)
            place, full_at = self._place(file, digest, now, besides=writes)
            wait = full_at - now if place is None else bucket.wait_time(full_at, now)
            if place is None or wait:
                refusing.append(ExceededLimit(rate, _round_up(wait)))
                continue
            writes.append((place, _PLACE.pack(digest, bucket.take(full_at, now))))
            taken.append(rate)
        exceeded = tuple([each for each in refusing if each.limit.enforced])
        observed = tuple([each for each in refusing if not each.limit.enforced])
        if exceeded:
            return LimitReservation(exceeded, observed)
        for place, content in writes:
            os.pwrite(file, content, place)
        return LimitReservation((), observed, tuple(taken))

    def _give_back(self, file: int, rate: RateLimit, digest: bytes) -> None:
        start, content = self._set_of(file, digest)
        at = _find_digest(content, digest)
        if at is not None:
            _, full_at = _PLACE.unpack_from(content, at)
            os.pwrite(file, _PLACE.pack(digest, full_at - build_bucket(rate).interval), start + at)

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
        self._secret = secret


def _find_digest(content: bytes, digest: bytes) -> int | None:
    at = content.find(digest)
    while at % _PLACE.size and at >= 0:  # half of one place and half of the next can look alike
        at = content.find(digest, at + 1)
    return None if at < 0 else at


def _round_up(nanoseconds: int) -> timedelta:
    return timedelta(microseconds=-(-nanoseconds // 1000))
