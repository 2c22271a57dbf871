"""Implicit turns: the shared state of calls that name no turn.

Standard clients do not send a handle. So the calls of one caller in one catalogue, made with one credential, share an
implicit turn: rules that read earlier calls see what these saw and how often they were made. It ends after a time
without calls. It has no artifacts, and no caller can name it: ending it would drop its state.
"""

from collections import OrderedDict
from functools import lru_cache
from hashlib import sha256
from typing import Final, Protocol

from gateway.errors import StoreUnavailable
from gateway.model import Credential, Principal, new_secret, now_microseconds
from gateway.policy import InvalidTurnState, TurnState
from gateway.storage import ExtendedTurn, StoredTurn

PREFIX: Final = "implicit_"
_ID_DIGITS: Final = 40
_STORED_DIGITS: Final = 16
MOST: Final = 4_096
"""Implicit turns in the memory of a process; others are read from the store again."""


class ImplicitTurnStore(Protocol):
    async def extend_turn(self, turn: StoredTurn) -> ExtendedTurn: ...

    async def read_turn_state(self, turn_id: str) -> bytes | None: ...


class ImplicitTurn:
    """The state that calls without a handle share. Its row is in the store from the first call on."""

    __slots__ = ("id", "is_behind", "is_stored", "state", "until")

    def __init__(self, id: str, memory: TurnState, until: int) -> None:
        self.id: Final = id
        self.is_stored = True
        self.is_behind = False
        """Whether the store does not have everything that the turn has seen."""
        self.state = memory
        self.until = until
        """When it ends if no call comes, in microseconds."""


class ImplicitTurns:
    """One per process."""

    def __init__(self, store: ImplicitTurnStore, *, are_shared: bool, most: int = MOST) -> None:
        """`are_shared`: other processes serve the same callers, so their state is read from the store."""
        self._store = store
        self._are_shared = are_shared
        self._most = most
        self._known: OrderedDict[str, ImplicitTurn] = OrderedDict()

    async def of(self, principal: Principal, catalogue: str, revision: str, idle: int) -> ImplicitTurn:
        """Return the implicit turn of a caller, which lasts for `idle` microseconds at least.

        Raise `StoreUnavailable`, also if its state is malformed: that must not be treated as empty.
        """
        id = implicit_id(principal, catalogue)
        at = now_microseconds()
        found = self._known.get(id)
        if found is None or found.until - at < idle:
            return await self._keep(StoredTurn(id, principal, catalogue, revision, new_secret(), at, at + longer(idle)))
        self._known.move_to_end(id)
        if self._are_shared:
            _merge(found, await self._store.read_turn_state(id))
        return found

    async def _keep(self, stored: StoredTurn) -> ImplicitTurn:
        """Begin or prolong the turn: the store knows whether other processes have used it meanwhile."""
        row = await self._store.extend_turn(stored)
        found = self._known.get(stored.id)
        if found is not None and not row.is_new:
            if self._are_shared:  # otherwise the row may be older than what this process knows
                _merge(found, row.memory)
            found.until = max(found.until, stored.expires)
        elif found is None or found.until <= stored.created:  # otherwise the store lost it, but this process knows it
            found = ImplicitTurn(stored.id, TurnState(), stored.expires)
            _merge(found, row.memory)
        self._known[stored.id] = found
        self._known.move_to_end(stored.id)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return found


def _merge(turn: ImplicitTurn, memory: bytes | None) -> None:
    try:
        turn.state.merge_stored(memory)
    except InvalidTurnState as error:
        raise StoreUnavailable("the state of earlier calls of this caller cannot be read") from error


def implicit_id(principal: Principal, catalogue: str) -> str:
    """Return the id for a caller, catalogue and credential. Roles are not part of it: new roles must keep the state."""
    return _implicit_id(principal.tenant, principal.subject, catalogue, principal.credential)


def implicit_digest(principal: Principal, catalogue: str) -> str:
    """Return the part of that id that records store: calls with the same one share their state."""
    return implicit_id(principal, catalogue)[len(PREFIX) : len(PREFIX) + _STORED_DIGITS]


@lru_cache(maxsize=MOST)
def _implicit_id(tenant: str | None, subject: str, catalogue: str, credential: Credential | None) -> str:
    how = ("", "", "") if credential is None else (credential.method, credential.issuer, credential.token_id)
    parts = (tenant, subject, catalogue, *how)
    framed = "".join("-" if part is None else f"{len(part)}:{part}" for part in parts)
    return PREFIX + sha256(framed.encode("utf-8", "surrogatepass")).hexdigest()[:_ID_DIGITS]


def longer(idle: int) -> int:
    """Return a slightly longer time, so that not every call has to prolong the turn in the store."""
    return idle * 17 // 16
