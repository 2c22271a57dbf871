"""Implicit turns: what calls without a handle remember together.

Standard clients send no handle back. So the calls of one caller in one catalogue, made with one credential, share an
implicit turn: rules that look back see what the earlier ones saw and count how often they were made. It ends when none
was made for a while. It holds no artifacts, and nobody can name it: ending it would make it forget.
"""

from collections import OrderedDict
from hashlib import sha256
from typing import Final, Protocol

from gateway.core.ids import new_secret
from gateway.core.moments import clock
from gateway.errors import StoreUnavailable
from gateway.governance.memory import MemoryUnreadable, TurnMemory
from gateway.governance.principals import Principal
from gateway.governance.records import KeptTurn, StoredTurn

PREFIX: Final = "implicit_"
_ID_DIGITS: Final = 40
MOST: Final = 4_096
"""Implicit turns in the memory of a process; further ones are read from the store again."""


class ImplicitTurnStore(Protocol):
    async def keep_turn(self, turn: StoredTurn) -> KeptTurn: ...

    async def memory_of_turn(self, turn_id: str) -> bytes | None: ...


class ImplicitTurn:
    """The memory that calls without a handle share. Its row is in the store from the first of them on."""

    __slots__ = ("id", "is_behind", "is_stored", "memory", "until")

    def __init__(self, id: str, memory: TurnMemory, until: int) -> None:
        self.id: Final = id
        self.is_stored = True
        self.is_behind = False
        """Whether the store does not know yet what it has seen."""
        self.memory = memory
        self.until = until
        """The moment at which it ends if no call comes, in microseconds."""


class ImplicitTurns:
    """One per process."""

    def __init__(self, store: ImplicitTurnStore, *, are_shared: bool, most: int = MOST) -> None:
        """`are_shared`: other processes serve the same callers, so the store is asked what they saw."""
        self._store = store
        self._are_shared = are_shared
        self._most = most
        self._known: OrderedDict[str, ImplicitTurn] = OrderedDict()

    async def of(self, principal: Principal, catalogue: str, revision: str, idle: int) -> ImplicitTurn:
        """The implicit turn of a caller, which goes on for `idle` microseconds at least.

        Raises `StoreUnavailable`, also for a memory that is none: nothing may be allowed by what it does not say.
        """
        id = implicit_id(principal, catalogue)
        at = clock()
        found = self._known.get(id)
        if found is None or found.until - at < idle:
            return await self._kept(StoredTurn(id, principal, catalogue, revision, new_secret(), at, at + longer(idle)))
        self._known.move_to_end(id)
        if self._are_shared:
            _learn(found, await self._store.memory_of_turn(id))
        return found

    async def _kept(self, stored: StoredTurn) -> ImplicitTurn:
        """Begin it, or make it go on: the store knows whether other processes have used it meanwhile."""
        kept = await self._store.keep_turn(stored)
        found = self._known.get(stored.id)
        if found is not None and not kept.is_new:
            _learn(found, kept.memory)
            found.until = max(found.until, stored.expires)
        elif found is None or found.until <= stored.created:  # else the store lost it, and this process knows it
            found = ImplicitTurn(stored.id, TurnMemory(), stored.expires)
            _learn(found, kept.memory)
        self._known[stored.id] = found
        self._known.move_to_end(stored.id)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return found


def _learn(turn: ImplicitTurn, memory: bytes | None) -> None:
    try:
        turn.memory.learns(memory)
    except MemoryUnreadable as error:
        raise StoreUnavailable("what earlier calls of this caller brought cannot be read") from error


def implicit_id(principal: Principal, catalogue: str) -> str:
    """One for each caller, catalogue and credential. Roles have no part in it: new ones must not make a turn forget."""
    credential = principal.credential
    how = ("", "", "") if credential is None else (credential.method, credential.issuer, credential.token_id)
    parts = (principal.tenant, principal.subject, catalogue, *how)
    framed = "".join("-" if part is None else f"{len(part)}:{part}" for part in parts)
    return PREFIX + sha256(framed.encode("utf-8", "surrogatepass")).hexdigest()[:_ID_DIGITS]


def longer(idle: int) -> int:
    """Stored a little longer than needed, so that not every call has to write that the turn goes on."""
    return idle * 17 // 16
