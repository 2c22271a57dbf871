"""Client of one bucket of an S3-compatible store, through obstore: objects, ranges, lists, and a health check.

The client notices within a second that the store is down or too slow. From then on it refuses every request at once,
and checks every second whether the store is back.
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

REQUEST_TIMEOUT: Final = 0.3
"""Seconds without a response after which the health of the store is checked."""

HEALTH_CHECK_TIMEOUT: Final = 0.6
"""Seconds in which it has to respond to that."""

STALLED: Final = REQUEST_TIMEOUT + HEALTH_CHECK_TIMEOUT
"""Seconds without a byte after which a read fails."""

LONGEST: Final = 60.0
"""Seconds that one request may take while the store responds to others."""

RETRY_INTERVAL: Final = 1.0
"""Seconds between two health checks of a store that is in trouble."""

IDLE: Final = 10.0
"""Seconds between two health checks of a store that is not."""

CREDENTIALS_FOR: Final = timedelta(minutes=1)
"""How long credentials are used before they are read again: a file may be rotated."""

_LETS_GO: Final = 0.05
_SOME: Final = 1000
_STATUS: Final = re.compile(r"status code: (\d{3})")
_NO_BUCKET: Final = "NoSuchBucket"
_FULL: Final = ("507", "QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "no space left")

_log: Final = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class InvalidObjectStore(ProgramError):
    code = "E_OBJECT_STORE_UNUSABLE"
    default_message = "the object store cannot be used like this"


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """Where a bucket is. Defaults: the endpoint of the region, and credentials from the environment."""

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
class ObjectPage:
    path: str
    size: int
    written_at: datetime


class ObjectStoreClient:
    """Paths are relative to the prefix of the bucket. Methods raise `StoreUnavailable` within about a second."""

    def __init__(self, place: BucketAddress) -> None:
        self.place = place
        self._library = import_obstore()
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
    async def open(cls, place: BucketAddress) -> "ObjectStoreClient":
        """Raise `InvalidObjectStore` if access is denied. A store that is down is accepted: it may come back."""
        bucket = cls(place)
        await bucket._look()
        if bucket._trouble is not None and bucket._trouble.fatal:
            await bucket.close()
            raise InvalidObjectStore(f"{bucket._trouble.message}: {place.name}", help=bucket._trouble.help)
        bucket._beating = asyncio.create_task(bucket._beat())
        return bucket

    @property
    def problem(self) -> str | None:
        """Why nothing can be read or written at present."""
        return None if self._trouble is None else self._trouble.message

    async def put(self, path: str, content: bytes | bytearray) -> None:
        """Write an object, or replace it."""
        put = self._library.put_async
        await self._patiently(lambda: put(self._writes, self._at(path), content, use_multipart=False))

    async def create(self, path: str, content: bytes) -> None:
        """Write an object where none is. Raises `RecordConflict` if a different one is there."""
        put = self._library.put_async
        try:
            await self._patiently(lambda: put(self._writes, self._at(path), content, mode="create"))
        except self._library.exceptions.AlreadyExistsError as error:  # perhaps our own, whose response was lost
            if await self.read_object(path, limit=len(content)) != content:
                raise RecordConflict("another result has that name in the object store", cause=error) from error

    async def read_object(self, path: str, *, limit: int) -> bytes | None:
        """Return all of an object, `None` if there is none or it is larger than the limit."""
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
            raise self._report(error) from error

    async def has(self, path: str) -> bool:
        self.require()
        try:
            await self._library.head_async(self._reads, self._at(path))
        except Exception as error:
            if _is_missing(error):
                return False
            raise self._report(error) from error
        return True

    def read(self, path: str, *, start: int, length: int) -> bytes:
        """Return a range of an object; for threads. Raises `ArtifactGone` if there is no such object or range."""
        self.require()
        try:
            content = bytes(self._library.get_range(self._reads, self._at(path), start=start, length=length))
        except Exception as error:
            if _is_missing(error) or _status(error) == "416":
                raise ArtifactGone() from error
            raise self._report(error) from error
        self._answered_at = monotonic()
        return content

    async def list_objects(self, prefix: str) -> AsyncIterator[list[ObjectPage]]:
        """Iterate over the objects below a prefix, in the order of their paths, in batches."""
        self.require()
        skipped = len(self._at(""))
        try:
            async for some in self._library.list(self._reads, self._at(prefix), chunk_size=_SOME):
                yield [ObjectPage(each["path"][skipped:], each["size"], each["last_modified"]) for each in some]
        except GeneratorExit:
            raise
        except Exception as error:
            raise self._report(error) from error

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete objects. Objects that are not there are no error."""
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
        # The interpreter aborts if it ends while threads of the library hold Python objects. They release them when
        # it is idle for a moment.
        await asyncio.sleep(_LETS_GO)

    async def _patiently(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Wait for a request as long as the store responds: a large object on a slow network takes its time."""
        self.require()
        task = asyncio.ensure_future(_to_coroutine(ask))
        try:
            while not (await asyncio.wait({task}, timeout=REQUEST_TIMEOUT))[0]:
                await self._look()
                if self._trouble is not None:
                    self._wake.set()  # health checks are more frequent while the store is in trouble
                self.require()
            answer = task.result()
            self._answered_at = monotonic()
            return answer
        except self._library.exceptions.AlreadyExistsError:
            raise
        except Exception as error:
            raise (error if isinstance(error, StoreUnavailable) else self._report(error)) from error
        finally:
            task.cancel()

    def require(self) -> None:
        """Raise `StoreUnavailable` if the store is known to be in trouble."""
        if self._is_closed:
            raise StoreUnavailable("the spool is closed")
        if self._trouble is not None:
            raise StoreUnavailable(self._trouble.message, help=self._trouble.help)

    def _report(self, error: Exception) -> StoreUnavailable:
        """Return the error for the caller, refuse requests with it from now on, and check the store at once."""
        found = _unavailable(error)
        if not _is_full(error):
            self._trouble = found
            with suppress(RuntimeError):  # the loop is closed: no request comes any more
                self._loop.call_soon_threadsafe(self._wake.set)
        return found

    async def _beat(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE if self._trouble is None else RETRY_INTERVAL):
                    await self._wake.wait()
            self._wake.clear()
            before = self._trouble
            await self._look()
            if before is None and self._trouble is not None:
                await self._look()  # no request waits: check twice, as one response may be lost
            if before is not None and self._trouble is None:
                _log.info("the object store answers again: %s", self.place.name)
            elif before is None and self._trouble is not None:
                _log.warning("%s: %s", self._trouble.message, self.place.name)

    async def _look(self) -> None:
        """Check the store. Callers at the same time share one check."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._check_health())
            self._looking.add_done_callback(self._forget_check)
        await asyncio.shield(self._looking)

    def _forget_check(self, task: "asyncio.Task[None]") -> None:
        self._looking = None

    async def _check_health(self) -> None:
        """Request a list that is always empty: that needs the bucket and valid credentials."""
        began = monotonic()
        task = asyncio.create_task(self._list_nothing())
        try:
            await asyncio.wait({task}, timeout=HEALTH_CHECK_TIMEOUT)
            await asyncio.sleep(0)  # if this process was too busy, the response is here by now
            if task.done():
                error = task.exception()
                self._trouble = _unavailable(error) if isinstance(error, Exception) else None
            else:  # a store that responded to another request meanwhile is busy, not gone
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
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=REQUEST_TIMEOUT), "backoff": backoff},
            credential_provider=None if place.credentials is None else _Credentials(place.credentials),
        )


class _Credentials:
    def __init__(self, read: Callable[[], tuple[str, str]]) -> None:
        self._read = read

    def __call__(self) -> dict[str, Any]:
        access_key, secret_key = self._read()
        ends = datetime.now(UTC) + CREDENTIALS_FOR
        return {"access_key_id": access_key, "secret_access_key": secret_key, "expires_at": ends}


def import_obstore() -> Any:
    """Raise `InvalidObjectStore` if it is not installed."""
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise InvalidObjectStore(
            "a spool in an object store needs a package that is not installed",
            help='install it with: pip install "agent-gateway[s3]", or use blobs of type: files',
        ) from error
    return obstore


async def _to_coroutine(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    return await ask()


def _unavailable(error: Exception) -> StoreUnavailable:
    """Return the error for callers. It shows neither the address of the store nor its contents."""
    if "credential provider" in str(error):
        help = "look for the files or variables of the access key and the secret key"
        return _fatal("the credentials of the object store cannot be read", help, error)
    if _status(error) in ("401", "403"):
        help = "check the access key, the secret key and what they may do"
        return _fatal("the object store denies access with these credentials", help, error)
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
