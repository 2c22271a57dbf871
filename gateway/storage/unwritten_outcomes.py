"""Outcomes of calls that could not be written: held in bounded memory, and written when the store recovers."""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any, Final, Protocol

from gateway.errors import RecordConflict, StoreUnavailable
from gateway.model import Principal
from gateway.storage.call_store import AuditBody, HeldKey, IdempotencyClaim, StoredCall, StoredTurn
from gateway.storage.refusal_store import Refusal
from gateway.storage.sql.call_rows import arguments_text, owner_key

MOST: Final = 10_000
"""Largest number of outcomes, and of entries of the decision log besides."""
MOST_BYTES: Final = 64 << 20
"""Largest size of their results and arguments."""

_OVERHEAD: Final = 2_048
"""Bytes that an outcome takes besides its contents."""
_AT_ONCE: Final = 64
_LAST_SECONDS: Final = 2.0

Name = tuple[str, str]
"""A turn and a call in it."""

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class LateOutcome:
    """Everything that is needed to record an outcome, also in a store that lost the turn, the start and the key.

    `memory` and `knowing` are as in `CallStore.record_call`. `refusal` is set for a call that was started and then
    refused. `on_drop` is called if the outcome will not be written.
    """

    call: StoredCall
    turn: StoredTurn
    memory: bytes | None = None
    knowing: bytes | None = None
    audit: Sequence[AuditBody] = ()
    is_started: bool = True
    held: HeldKey | None = None
    refusal: Refusal | None = None
    on_drop: Callable[[], None] | None = field(default=None, repr=False)


class BacklogStore(Protocol):
    def run(self, work: Callable[[Any], Any]) -> Awaitable[Any]:
        """Run work in a transaction. Raises `StoreUnavailable`."""
        ...

    def write_late(self, connection: Any, late: LateOutcome) -> None:
        """Raises `RecordConflict` for a call that has an outcome."""
        ...

    def write_audit(self, connection: Any, audit: Sequence[AuditBody]) -> None: ...

    def abandon_left_calls(self, connection: Any, is_running: Callable[[Name], bool]) -> int:
        """Mark started calls of this process that do not run as `unknown`. Return how many there were."""
        ...


class OutcomeBacklog:
    """The backlog of one store in one process. Only the thread of the event loop changes it."""

    def __init__(self, store: BacklogStore, *, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._store = store
        self._most = most
        self._most_bytes = most_bytes
        self._started: OrderedDict[Name, LateOutcome] = OrderedDict()
        self._alone: OrderedDict[Name, LateOutcome] = OrderedDict()
        """Outcomes of calls without a recorded start. They had no effect, so they are dropped first."""
        self._bytes = 0
        self._by_key: dict[tuple[str, str], Name] = {}
        self._dropped_keys: OrderedDict[tuple[str, str], str] = OrderedDict()
        """The digests of calls whose outcomes were dropped; the oldest go first."""
        self._pieces: dict[str, bytes] = {}
        self._audit: deque[AuditBody] = deque(maxlen=most)
        self._running: set[Name] = set()
        self._is_doubtful = False

    def __len__(self) -> int:
        return len(self._started) + len(self._alone)

    # --- calls of this process ---

    async def start(self, name: Name, start: Awaitable[None]) -> None:
        """Write the start of a call, which counts as running before it is written."""
        is_new = self._begin(name)
        try:
            await start
        except BaseException:
            if is_new:
                self.end(name)
            raise

    async def claim(self, name: Name, claim: Awaitable[IdempotencyClaim]) -> IdempotencyClaim:
        """Do the same for a start with an idempotency key that another call may have already."""
        is_new, is_fresh = self._begin(name), False
        try:
            found = await claim
            is_fresh = found.state == "fresh"
            return found
        finally:
            if is_new and not is_fresh:
                self.end(name)

    def end(self, name: Name) -> None:
        """Remove a call from the running ones: it has a recorded outcome, or no start."""
        self._running.discard(name)

    def leave(self, name: Name) -> None:
        """Mark a call as no longer running. If its outcome is neither recorded nor here, it is lost."""
        if name in self._running:
            self._running.discard(name)
            self._is_doubtful = self._is_doubtful or name not in self._started

    # --- adding ---

    def add(self, late: LateOutcome) -> None:
        """Add an outcome, and drop the oldest ones if there is no room. The first outcome of a call counts."""
        name = (late.call.turn_id, late.call.id)
        outcomes = self._started if late.is_started else self._alone
        if name in outcomes:
            return
        if not len(self):
            _log.warning("the outcome of a call could not be recorded; it is held in memory until the store recovers")
        outcomes[name] = late
        self._bytes += _size(late)
        if late.held is not None:
            self._by_key[(owner_key(late.call.principal), late.held.key)] = name
        self._pieces |= _contents(late)
        while len(self) > self._most or self._bytes > self._most_bytes:
            self._drop_oldest()

    def add_audit(self, audit: Sequence[AuditBody]) -> None:
        self._audit.extend(audit)

    # --- finding ---

    def find(self, id: str, principal: Principal, turn_id: str | None) -> StoredCall | None:
        """Return the principal's call of that id as it will be recorded."""
        if not len(self):
            return None
        owner = owner_key(principal)
        for (turn, call), late in chain(self._started.items(), self._alone.items()):
            if call == id and turn_id in (None, turn) and owner_key(late.call.principal) == owner:
                return late.call
        return None

    def find_claim(self, key: str, principal: Principal, digest: str) -> IdempotencyClaim | None:
        """Return the state of an idempotency key whose call has an outcome here, or had one that was dropped."""
        if not self._by_key and not self._dropped_keys:
            return None
        held = (owner_key(principal), key)
        if (dropped := self._dropped_keys.get(held)) is not None:
            return IdempotencyClaim("unknown" if dropped == digest else "taken")
        name = self._by_key.get(held)
        late = None if name is None else self._started[name]
        if late is None or late.held is None or late.refusal is not None:  # a refused call frees its key
            return None
        return IdempotencyClaim("settled", late.call) if late.held.digest == digest else IdempotencyClaim("taken")

    def find_piece(self, key: str) -> bytes | None:
        return self._pieces.get(key)

    # --- writing ---

    async def write(self) -> int:
        """Write everything. Return how many calls became `unknown`. Raises `StoreUnavailable`; the rest stays here."""
        at_once = 1  # the first one shows whether the store has recovered
        while waiting := list(islice(chain(self._started.items(), self._alone.items()), at_once)):
            await self._write_some(waiting)
            at_once = _AT_ONCE
            if not len(self):
                _log.warning("the store recovered, and all outcomes in memory are recorded")
        while self._audit:
            bodies = [self._audit.popleft() for _ in range(min(_AT_ONCE, len(self._audit)))]
            try:
                await self._store.run(partial(self._store.write_audit, audit=bodies))
            except BaseException:
                self._audit.extendleft(reversed(bodies))
                raise
        return await self._abandon_left_calls() if self._is_doubtful else 0

    async def close(self) -> None:
        """Write what can be written now. Other calls are `unknown` once another process recovers them."""
        if len(self) or self._audit or self._is_doubtful:
            try:
                async with asyncio.timeout(_LAST_SECONDS):
                    await self.write()
            except (StoreUnavailable, TimeoutError):
                _log.error("%d outcomes of calls could not be recorded before the process ends", len(self))

    async def _write_some(self, waiting: list[tuple[Name, LateOutcome]]) -> None:
        done = await asyncio.gather(*(self._write_one(late) for _, late in waiting), return_exceptions=True)
        failed: StoreUnavailable | None = None
        for (name, late), error in zip(waiting, done, strict=True):
            if isinstance(error, StoreUnavailable):
                failed = error
                continue
            if error is not None:  # another process recorded an outcome, or this one can never be written
                self._is_doubtful = self._is_doubtful or late.is_started
                if not isinstance(error, RecordConflict):
                    _log.error("an outcome cannot be recorded", exc_info=error)
            self._forget(name, late)
        if failed is not None:
            raise failed

    async def _write_one(self, late: LateOutcome) -> None:
        await self._store.run(lambda connection: self._store.write_late(connection, late))

    async def _abandon_left_calls(self) -> int:
        self._is_doubtful = False
        try:
            found: int = await self._store.run(
                lambda connection: self._store.abandon_left_calls(connection, self._is_running)
            )
        except BaseException:
            self._is_doubtful = True
            raise
        self._dropped_keys.clear()
        return found

    def _begin(self, name: Name) -> bool:
        """Whether the call was not running before: two requests may start the same call, and the first goes on."""
        is_new = name not in self._running
        self._running.add(name)
        return is_new

    def _is_running(self, name: Name) -> bool:
        """Called by the writer thread. Calls are marked before their start is written, so none is given up early."""
        return name in self._running or name in self._started

    def _drop_oldest(self) -> None:
        name, late = next(iter((self._alone or self._started).items()))
        self._forget(name, late)
        if late.is_started:
            self._is_doubtful = True
        if late.held is not None and late.refusal is None:
            self._dropped_keys[(owner_key(late.call.principal), late.held.key)] = late.held.digest
            if len(self._dropped_keys) > self._most:
                self._dropped_keys.popitem(last=False)
        if late.on_drop is not None:
            late.on_drop()
        _log.error("too many outcomes wait for the store: that of call %s is dropped", late.call.id)

    def _forget(self, name: Name, late: LateOutcome) -> None:
        (self._started if late.is_started else self._alone).pop(name, None)
        self._bytes -= _size(late)
        if late.held is not None:
            self._by_key.pop((owner_key(late.call.principal), late.held.key), None)
        for key in _contents(late):
            self._pieces.pop(key, None)


def _size(late: LateOutcome) -> int:
    results = sum(len(each.text or "") + len(each.content or b"") for each in late.call.results)
    return _OVERHEAD + results + len(arguments_text(late.call)) + len(late.memory or b"")


def _contents(late: LateOutcome) -> dict[str, bytes]:
    return {each.key: each.content for each in late.call.results if each.key is not None and each.content is not None}
