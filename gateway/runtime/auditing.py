"""How a running gateway keeps its decision log: the key of its hashes, and anchors that are written while it grows.

An anchor that cannot be written holds up no call: it is tried again, and whoever operates the gateway is told.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from secrets import token_bytes
from time import monotonic_ns
from typing import Any, Final, TypeVar

from gateway.audit.anchors import AnchorFile, AnchorSink, SignedAnchor, last_anchored
from gateway.audit.anchors import Anchoring as AnchoredChain
from gateway.audit.chain import Head
from gateway.audit.contents import MIN_BYTES, ContentKey
from gateway.audit.keys import SigningKey
from gateway.audit.secret_bytes import WeakKey
from gateway.config.specs.audit import Audit
from gateway.core.events import now
from gateway.errors import GatewayError
from gateway.runtime.secrets import Secrets

Key = TypeVar("Key")

_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BEAT: Final = 1.0
_PATIENCE: Final = 5.0
"""Seconds that a file system may take for one line before somebody is told."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AnchorTerms:
    """Where anchors go, who signs them, and how often they are written."""

    path: Path
    key: SigningKey
    every: timedelta
    entries: int


@dataclass(frozen=True, slots=True)
class Auditing:
    """What a Gateway says about its log, with the secrets read. `warnings` are what the log cannot do like this."""

    key: ContentKey
    anchors: AnchorTerms | None
    warnings: tuple[str, ...] = ()


def auditing_of(audit: Audit | None, secrets: Secrets) -> Auditing:
    """Raises `SecretMissing`, or `WeakKey` for a key that could be guessed or is of another kind."""
    return Auditing(content_key(audit, secrets), _anchor_terms(audit, secrets), tuple(_warnings(audit)))


def content_key(audit: Audit | None, secrets: Secrets) -> ContentKey:
    """The key of hashes of arguments and results; one that this process makes up if the document names none."""
    if audit is None or audit.key is None:
        return ContentKey(token_bytes(MIN_BYTES).hex())
    return _read("audit.key", partial(ContentKey, secrets.read(audit.key)))


def _anchor_terms(audit: Audit | None, secrets: Secrets) -> AnchorTerms | None:
    if audit is None or audit.anchors is None:
        return None
    anchors = audit.anchors
    key = _read("audit.anchors.signingKey", partial(SigningKey.load, secrets.read(anchors.signing_key)))
    return AnchorTerms(Path(anchors.path), key, anchors.every, anchors.entries)


def _read(field: str, load: Callable[[], Key]) -> Key:
    try:
        return load()
    except WeakKey as error:
        raise WeakKey(f"{field} of the Gateway: {error.message}", help=error.help) from None


def _warnings(audit: Audit | None) -> list[str]:
    found = []
    if audit is None or audit.key is None:
        found.append("the Gateway names no audit.key: hashes in the log cannot be compared across restarts")
    if audit is None or audit.anchors is None:
        found.append("the Gateway names no audit.anchors: a log that was cut off or written anew is not noticed")
    return found


class Anchoring:
    """Writes anchors of one process's chain: at the start, from time to time, and at the end.

    `head` tells how far the chain is durable. `anchored` reads how far earlier anchors of a shard reach.
    """

    def __init__(
        self,
        terms: AnchorTerms,
        head: Callable[[], Head],
        *,
        sink: AnchorSink | None = None,
        anchored: Callable[[str], int] | None = None,
        clock: Callable[[], datetime] = now,
        ticks: Callable[[], int] = monotonic_ns,
        patience: float = _PATIENCE,
    ) -> None:
        self._terms = terms
        self._head = head
        self._sink = sink or AnchorFile(terms.path)
        self._anchored = anchored or partial(last_anchored, terms.path)
        self._clock = clock
        self._ticks = ticks
        self._patience = patience
        self._chain: AnchoredChain | None = None
        self._shard: str | None = None
        self._last: SignedAnchor | None = None
        self._is_owed = True
        self._writing: asyncio.Future[Exception | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.problem: str | None = None
        """Why no anchor can be written at present, if none can."""

    def start(self) -> None:
        """Write the first anchor, and go on until `close`."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Write the last anchor. Whatever is appended later is not covered by one."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._is_owed = True
        try:
            async with asyncio.timeout(self._patience):
                if self._writing is not None:
                    await asyncio.wait({self._writing})
                await self.look()
        except TimeoutError as error:
            self._tell(error)

    async def look(self) -> None:
        """Write an anchor if one is due, or owed since an earlier look. Nothing that goes wrong is raised."""
        if self._writing is not None and not self._writing.done():
            return
        try:
            head = self._head()
            if self._is_due(head):
                self._is_owed = True
                await self._written(head)
        except Exception as error:
            self._tell(error)

    async def confirm(self) -> bool:
        """Have an anchor written of all that is durable by now; whether one tells of it."""
        head = self._head()
        for _ in range(2):  # one may be under way that was begun before
            if self._writing is not None:
                await asyncio.wait({self._writing})
            if self._reaches(head):
                return True
            self._is_owed = True
            await self.look()
        return self._reaches(head)

    def status(self) -> Mapping[str, Any]:
        """For status pages. `unanchored` is how many entries no anchor confirms yet."""
        last = self._last.anchor if self._last else None
        return {
            "key": self._terms.key.id,
            "anchored": last.seq if last else 0,
            "anchoredAt": (_EPOCH + timedelta(microseconds=last.at)).isoformat() if last else None,
            "unanchored": self._head().seq - (last.seq if last else 0),
            "problem": self.problem,
        }

    def _reaches(self, head: Head) -> bool:
        last = self._last.anchor if self._last else None
        return last is not None and last.shard == head.shard and last.seq >= head.seq

    async def _run(self) -> None:
        beat = min(_BEAT, self._terms.every.total_seconds())
        while True:
            await self.look()
            await asyncio.sleep(beat)

    def _is_due(self, head: Head) -> bool:
        """Time is measured by a clock that nobody sets; an anchor still tells what the clock on the wall showed."""
        if self._is_owed or self._chain is None or self._shard != head.shard:
            return head.seq > 0
        return self._chain.is_due(head, self._ticks() // 1000)

    async def _written(self, head: Head) -> None:
        """One write at a time; one that hangs is told of, and waited for."""
        self._writing = _in_a_thread(partial(self._write, head, (self._clock() - _EPOCH) // _MICROSECOND))
        await asyncio.wait({self._writing}, timeout=self._patience)
        if not self._writing.done():
            self._tell(TimeoutError())
            await asyncio.wait({self._writing})
        error = self._writing.result()
        if error is not None:
            raise error
        self._is_owed = False
        if self.problem is not None:
            _log.warning("anchors of the decision log are written again")
        self.problem = None

    def _write(self, head: Head, at: int) -> None:
        """In a thread; nothing else touches the chain meanwhile."""
        if self._chain is None or self._shard != head.shard:
            terms = self._terms
            self._chain = AnchoredChain(
                terms.key,
                self._sink,
                anchored=self._anchored(head.shard),
                every_entries=terms.entries,
                every_microseconds=terms.every // _MICROSECOND,
            )
            self._shard, self._last = head.shard, None
        self._last = self._chain.anchor(head, at) or self._last

    def _tell(self, error: Exception) -> None:
        """Once per outage."""
        if self.problem is None:
            unexpected = None if isinstance(error, GatewayError | OSError) else error
            _log.error("no anchor of the decision log can be written: %s", _words(error), exc_info=unexpected)
        self.problem = _words(error)


def _words(error: Exception) -> str:
    match error:
        case GatewayError():
            return error.message
        case TimeoutError():
            return "the file system does not answer"
        case OSError():
            return f"the anchors cannot be read ({error.strerror})"
        case _:
            return f"an anchor could not be made ({type(error).__name__})"


def _in_a_thread(work: Callable[[], None]) -> "asyncio.Future[Exception | None]":
    """What went wrong, if anything. Not in a pool: a file system that hangs must not keep the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Exception | None] = loop.create_future()

    def run() -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(done.set_result, error)

    threading.Thread(target=run, name="gateway-anchors", daemon=True).start()
    return done
