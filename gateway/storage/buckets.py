"""One bucket of an S3-compatible store, through obstore: whole objects, ranges of them, lists, and how the store is.

A store that is down or too slow is noticed within a second. From then on everything is refused at once, and the store
is asked every second whether it is back. What the objects mean is not known here.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from gateway.errors import ArtifactGone, ProgramError, RecordConflict, StoreUnavailable

PATIENCE: Final = 0.3
"""Seconds before a store that has not answered is asked whether it is there at all."""

PULSE: Final = 0.6
"""Seconds in which it has to say so."""

STALLED: Final = PATIENCE + PULSE
"""Seconds without a byte after which a read is given up."""

LONGEST: Final = 60.0
"""Seconds that one request may take while the store goes on answering others."""

AGAIN: Final = 1.0
"""Seconds between two looks at a store that is in trouble."""

IDLE: Final = 10.0
"""Seconds between two looks at one that is not."""

CREDENTIALS_FOR: Final = timedelta(minutes=1)
"""How long credentials are used before they are read again: a file may be rotated."""

_LETS_GO: Final = 0.05
_SOME: Final = 1000
_STATUS: Final = re.compile(r"status code: (\d{3})")
_NO_BUCKET: Final = "NoSuchBucket"
_FULL: Final = ("507", "QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "no space left")

_log: Final = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class ObjectStoreUnusable(ProgramError):
    code = "E_OBJECT_STORE_UNUSABLE"
    default_message = "the object store cannot be used like this"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bucket is. Without an endpoint it is that of the region; without credentials, the environment's count."""

    bucket: str
    endpoint: str | None = None
    region: str | None = None
    prefix: str = ""
    credentials: Callable[[], tuple[str, str]] | None = None
    """Reads the access key and the secret key."""

    @property
    def name(self) -> str:
        host = urlsplit(self.endpoint).netloc.rpartition("@")[2] if self.endpoint else "its public address"
        return f"bucket {self.bucket!r} at {host}"


@dataclass(frozen=True, slots=True)
class Listed:
    path: str
    size: int
    written_at: datetime


class Bucket:
    """Paths are relative to the place's prefix. Methods raise `StoreUnavailable` within about a second."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._library = obstore_library()
        self._reads = self._store(timeout=LONGEST, read_timeout=STALLED)
        self._writes = self._store(timeout=LONGEST)
        self._answered_at = 0.0
        self._trouble: StoreUnavailable | None = None
        self._wake = asyncio.Event()
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._beating: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, place: Place) -> "Bucket":
        """Raises `ObjectStoreUnusable` where nobody is let in; a store that is down may come back."""
        bucket = cls(place)
        await bucket._look()
        if bucket._trouble is not None and bucket._trouble.fatal:
            await bucket.close()
            raise ObjectStoreUnusable(f"{bucket._trouble.message}: {place.name}", help=bucket._trouble.help)
        bucket._beating = asyncio.create_task(bucket._beat())
        return bucket

    @property
    def trouble(self) -> str | None:
        """Why nothing can be read or written at present."""
        return None if self._trouble is None else self._trouble.message

    async def put(self, path: str, content: bytes | bytearray) -> None:
        """Put an object there, whatever is there."""
        put = self._library.put_async
        await self._patiently(lambda: put(self._writes, self._at(path), content, use_multipart=False))

    async def create(self, path: str, content: bytes) -> None:
        """Put an object where none is. Raises `RecordConflict` if another one is there."""
        put = self._library.put_async
        try:
            await self._patiently(lambda: put(self._writes, self._at(path), content, mode="create"))
        except self._library.exceptions.AlreadyExistsError as error:  # perhaps our own, whose answer was lost
            if await self.whole(path, limit=len(content)) != content:
                raise RecordConflict("another result has that name in the object store", cause=error) from error

    async def whole(self, path: str, *, limit: int) -> bytes | None:
        """All of an object, `None` if there is none, or if it is larger than the limit."""
        self.require()

        async def get() -> bytes | None:
            found = await self._library.get_async(self._reads, self._at(path))
            self._answered_at = monotonic()
            return None if found.meta["size"] > limit else bytes(await found.bytes_async())

        try:
            return await get()
        except Exception as error:
            if _is_missing(error):
                return None
            raise self._noticed(error) from error

    async def has(self, path: str) -> bool:
        self.require()
        try:
            await self._library.head_async(self._reads, self._at(path))
        except Exception as error:
            if _is_missing(error):
                return False
            raise self._noticed(error) from error
        return True

    def read(self, path: str, *, start: int, length: int) -> bytes:
        """A range of an object; for threads. Raises `ArtifactGone` where there is no such object or range."""
        self.require()
        try:
            content = bytes(self._library.get_range(self._reads, self._at(path), start=start, length=length))
        except Exception as error:
            if _is_missing(error) or _status(error) == "416":
                raise ArtifactGone() from error
            raise self._noticed(error) from error
        self._answered_at = monotonic()
        return content

    async def listed(self, prefix: str) -> AsyncIterator[list[Listed]]:
        """What is below a prefix, in the order of the paths, some at a time."""
        self.require()
        skipped = len(self._at(""))
        try:
            async for some in self._library.list(self._reads, self._at(prefix), chunk_size=_SOME):
                yield [Listed(each["path"][skipped:], each["size"], each["last_modified"]) for each in some]
        except GeneratorExit:
            raise
        except Exception as error:
            raise self._noticed(error) from error

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; those that are not there are deleted already."""
        for start in range(0, len(paths), _SOME):
            some = [self._at(path) for path in paths[start : start + _SOME]]
            await self._patiently(partial(self._library.delete_async, self._writes, some))

    async def close(self) -> None:
        self._is_closed = True
        for task in (self._beating, self._looking):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        # Threads of the library may still hold objects of ours. Whoever ends the interpreter before they let go of them
        # ends with an abort; they need it only to be idle for a moment.
        await asyncio.sleep(_LETS_GO)

    async def _patiently(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Wait for a request as long as the store is there: a large object on a slow line takes its time."""
        self.require()
        task = asyncio.ensure_future(_awaited(ask))
        try:
            while not (await asyncio.wait({task}, timeout=PATIENCE))[0]:
                await self._look()
                if self._trouble is not None:
                    self._wake.set()  # whoever looks after a store in trouble looks more often
                self.require()
            answer = task.result()
            self._answered_at = monotonic()
            return answer
        except self._library.exceptions.AlreadyExistsError:
            raise
        except Exception as error:
            raise (error if isinstance(error, StoreUnavailable) else self._noticed(error)) from error
        finally:
            task.cancel()

    def require(self) -> None:
        """Raises `StoreUnavailable` if it is known that nothing can be read or written at present."""
        if self._is_closed:
            raise StoreUnavailable("the spool is closed")
        if self._trouble is not None:
            raise StoreUnavailable(self._trouble.message, help=self._trouble.help)

    def _noticed(self, error: Exception) -> StoreUnavailable:
        """What is wrong, as everybody is told from now on; the store is asked at once whether that is still so."""
        found = _unavailable(error)
        if not _is_full(error):
            self._trouble = found
            with suppress(RuntimeError):  # the loop is closed: nobody asks any more
                self._loop.call_soon_threadsafe(self._wake.set)
        return found

    async def _beat(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE if self._trouble is None else AGAIN):
                    await self._wake.wait()
            self._wake.clear()
            before = self._trouble
            await self._look()
            if before is None and self._trouble is not None:
                await self._look()  # nobody waits for it: one question that was lost is none
            if before is not None and self._trouble is None:
                _log.info("the object store answers again: %s", self.place.name)
            elif before is None and self._trouble is not None:
                _log.warning("%s: %s", self._trouble.message, self.place.name)

    async def _look(self) -> None:
        """Ask how the store is; whoever wants to know at the same moment is told with the others."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._asked())
            self._looking.add_done_callback(self._looked)
        await asyncio.shield(self._looking)

    def _looked(self, task: "asyncio.Task[None]") -> None:
        self._looking = None

    async def _asked(self) -> None:
        """For a list that is always empty: it needs the bucket, and credentials that count."""
        began = monotonic()
        task = asyncio.create_task(self._list_nothing())
        try:
            await asyncio.wait({task}, timeout=PULSE)
            await asyncio.sleep(0)  # where this process was too busy to look, the answer is here by now
            if task.done():
                error = task.exception()
                self._trouble = _unavailable(error) if isinstance(error, Exception) else None
            else:  # a store that has answered somebody else meanwhile is busy, not gone
                self._trouble = _unavailable(TimeoutError()) if self._answered_at < began else None
        finally:
            task.cancel()

    async def _list_nothing(self) -> None:
        async for _ in self._library.list(self._reads, self._at("pulse")):
            break

    def _at(self, path: str) -> str:
        return f"{self.place.prefix}/{path}" if self.place.prefix else path

    def _store(self, *, timeout: float, read_timeout: float | None = None) -> Any:
        place = self.place
        options: dict[str, Any] = {
            "timeout": timedelta(seconds=timeout),
            "connect_timeout": timedelta(seconds=min(STALLED, timeout)),
            "allow_http": bool(place.endpoint and place.endpoint.startswith("http://")),
        }
        if read_timeout is not None:
            options["read_timeout"] = timedelta(seconds=read_timeout)
        config = {"endpoint": place.endpoint, "region": place.region}
        backoff = {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(milliseconds=200), "base": 2}
        return self._library.store.S3Store(
            place.bucket,
            config={name: value for name, value in config.items() if value is not None},
            client_options=options,
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=PATIENCE), "backoff": backoff},
            credential_provider=None if place.credentials is None else _Credentials(place.credentials),
        )


class _Credentials:
    def __init__(self, read: Callable[[], tuple[str, str]]) -> None:
        self._read = read

    def __call__(self) -> dict[str, Any]:
        access_key, secret_key = self._read()
        ends = datetime.now(UTC) + CREDENTIALS_FOR
        return {"access_key_id": access_key, "secret_access_key": secret_key, "expires_at": ends}


def obstore_library() -> Any:
    """Raises `ObjectStoreUnusable` where it is not installed."""
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise ObjectStoreUnusable(
            "a spool in an object store needs a package that is not installed",
            help='install it with: pip install "agent-gateway[s3]", or use blobs of type: files',
        ) from error
    return obstore


async def _awaited(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    return await ask()


def _unavailable(error: Exception) -> StoreUnavailable:
    """What callers are told: neither where the store is nor what is in it."""
    if "credential provider" in str(error):
        help = "look for the files or variables of the access key and the secret key"
        return _fatal("the credentials of the object store cannot be read", help, error)
    if _status(error) in ("401", "403"):
        help = "check the access key, the secret key and what they may do"
        return _fatal("the object store lets nobody in with these credentials", help, error)
    if _NO_BUCKET in str(error):
        return _fatal("there is no such bucket in the object store", "create it, or correct its name", error)
    if _is_full(error):
        return StoreUnavailable("the object store is full", help="make room, or raise its quota", cause=error)
    because = f"it answered {status}" if (status := _status(error)) else "it does not answer"
    help = "it is asked again every second; nothing needs to be restarted"
    return StoreUnavailable(f"the object store cannot be used: {because}", help=help, cause=error)


def _fatal(message: str, help: str, cause: Exception) -> StoreUnavailable:
    return StoreUnavailable(message, help=help, cause=cause, fatal=True)


def _is_missing(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError) and _NO_BUCKET not in str(error)


def _is_full(error: Exception) -> bool:
    return _status(error) == _FULL[0] or any(word in str(error) for word in _FULL[1:])


def _status(error: Exception) -> str | None:
    found = _STATUS.search(str(error))
    return None if found is None else found[1]
