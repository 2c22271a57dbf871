"""Block upstream tools whose definition differs from the locked one: they are neither listed nor called.

Every call of an upstream's tool checks it. The poller of the upstreams passes in their current definitions; this module
does not contact a server.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, NamedTuple

from gateway.errors import Refused
from gateway.model import TurnEvent, now
from gateway.registries import DeclaredDefinition, DeclaredTool, DefinitionKind

_KINDS: Final[Mapping[DefinitionKind, str]] = {"prompt": "prompt ", "resourceTemplate": "template "}


def format_definition_key(name: str, kind: DefinitionKind = "tool") -> str:
    """Return the key of a definition of a server: a tool, a prompt and a template may have the same name."""
    return _KINDS.get(kind, "") + name


@dataclass(frozen=True, slots=True)
class PinnedTemplate:
    """A resource template as it was locked."""

    remote_name: str
    pinned_digest: str | None


PinnedDefinition = DeclaredTool | DeclaredDefinition | PinnedTemplate
"""A definition that is served as it was locked, or not at all."""


BlockReason = Literal["changed", "changed-back", "gone", "not-locked"]

COMPARE_TIMEOUT: Final = 10.0
"""Seconds that the first call of a tool waits for the comparison of its definition."""

_WORDS: Final[Mapping[BlockReason, str]] = {
    "changed": "its definition differs from the approved one",
    "changed-back": "its definition changed and changed back",
    "gone": "its server no longer has it",
    "not-locked": "its definition was never approved",
}


@dataclass(frozen=True, slots=True)
class BlockedDefinition:
    """A definition that is not served, why, since when, and its current digest. `tool` has a prefix for other kinds."""

    upstream: str
    tool: str
    why: BlockReason
    since: datetime
    digest: str | None = None

    @property
    def kind(self) -> DefinitionKind:
        return next((kind for kind, start in _KINDS.items() if self.tool.startswith(start)), "tool")

    @property
    def words(self) -> str:
        return _WORDS[self.why]

    def to_dict(self) -> dict[str, Any]:
        return {
            "upstream": self.upstream,
            "tool": self.tool,
            "why": self.why,
            "because": self.words,
            "since": self.since.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "digest": self.digest,
        }


class DefinitionChanged(Refused):
    """The error for the caller of a blocked tool."""

    code = "E_DEFINITION_CHANGED"

    def __init__(self, withheld: BlockedDefinition) -> None:
        super().__init__(f"the tool is withheld: {withheld.words}", help="ask the operators of the gateway")
        self.withheld = withheld


class DefinitionNotCompared(Refused):
    code = "E_DEFINITION_UNSEEN"
    status = 503
    default_message = "the tool's definition could not be compared with the approved one"


@dataclass(slots=True)
class DefinitionStatusChanged(TurnEvent):
    """A definition is blocked from now on, or, if `lifted`, is served again."""

    name: ClassVar[str] = "definitionTurned"
    withheld: BlockedDefinition
    lifted: bool = False


@dataclass(slots=True)
class DefinitionAccepted(TurnEvent):
    """The changed definition of an upstream whose changes are accepted is served as it is now, or no longer."""

    name: ClassVar[str] = "definitionTaken"
    upstream: str
    definition: str
    kind: DefinitionKind
    what: Literal["added", "changed", "removed"]
    digest: str | None = None


class _Pin(NamedTuple):
    """An approved definition, and when the approval was confirmed."""

    digest: str
    confirmed: str | None


@dataclass(slots=True)
class DefinitionGuard:
    """What is blocked now. `changes` counts by upstream how often a definition changed, or changed back."""

    on_change: Callable[[list[DefinitionStatusChanged]], None] | None = None
    changes: Counter[str] = field(default_factory=Counter)
    _withheld: dict[tuple[str, str], BlockedDefinition] = field(default_factory=dict)
    _seen: dict[str, asyncio.Event] = field(default_factory=dict)
    _found: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _confirmed: dict[str, str | None] = field(default_factory=dict)
    _met: dict[tuple[str, str], _Pin] = field(default_factory=dict)
    """Definitions that a server has had as they were approved."""
    _flipped: dict[tuple[str, str], _Pin] = field(default_factory=dict)
    """Definitions among them that have differed since."""

    def inherit(self, upstreams: Iterable[str]) -> "DefinitionGuard":
        """Return the guard for the next revision, with the knowledge about these upstreams and all counts.

        That a definition has changed is never dropped, even if the address of its server changes.
        """
        heir = DefinitionGuard(changes=self.changes, _met=dict(self._met), _flipped=dict(self._flipped))
        for upstream in upstreams:
            if upstream in self._found:
                heir._found[upstream] = self._found[upstream]
                heir._withheld |= {key: each for key, each in self._withheld.items() if key[0] == upstream}
        return heir

    def find_blocked(self, upstream: str, tool: str) -> BlockedDefinition | None:
        return self._withheld.get((upstream, tool))

    def list_blocked(self) -> list[BlockedDefinition]:
        return [self._withheld[key] for key in sorted(self._withheld)]

    def is_compared(self, upstream: str) -> bool:
        return upstream not in self._seen or self._seen[upstream].is_set()

    def expect(self, upstream: str) -> None:
        """Make calls wait until the definitions of an upstream were compared for the first time."""
        if upstream not in self._found:
            self._seen.setdefault(upstream, asyncio.Event())

    async def wait_all_compared(self) -> None:
        """Wait until every expected upstream was compared."""
        for event in tuple(self._seen.values()):
            await event.wait()

    def block_unlocked(
        self, upstream: str, tools: Collection[PinnedDefinition], *, confirmed: str | None = None
    ) -> None:
        """Block unlocked definitions and, of an upstream that is known already, those that differ from the lock.

        `confirmed` is when an operator last confirmed the lock's definitions, whatever they were in between.
        """
        self._confirmed[upstream] = confirmed
        for tool in tools:
            name = get_definition_key(tool)
            if (upstream, name) in self._withheld:
                continue
            if tool.pinned_digest is None:
                self._withheld[upstream, name] = BlockedDefinition(upstream, name, "not-locked", now())
            elif self._flipped.get((upstream, name)) == _Pin(tool.pinned_digest, confirmed):
                self._withheld[upstream, name] = BlockedDefinition(upstream, name, "changed-back", now())
        if upstream in self._found:
            served = {get_definition_key(tool) for tool in tools}
            gone = [key for key in self._withheld if key[0] == upstream and key[1] not in served]
            for key in gone:
                del self._withheld[key]
            self.compare(upstream, tools, self._found[upstream])

    async def wait_compared(self, upstream: str, *, within: float = COMPARE_TIMEOUT) -> None:
        """Wait for the first comparison. Raise `DefinitionNotCompared` if there is none in time."""
        event = self._seen.get(upstream)
        if event is None or event.is_set():
            return
        try:
            async with asyncio.timeout(within):
                await event.wait()
        except TimeoutError:
            raise DefinitionNotCompared(help="the server does not answer: try again later") from None

    def compare(
        self, upstream: str, tools: Iterable[PinnedDefinition], found: Mapping[str, str]
    ) -> list[DefinitionStatusChanged]:
        """Compare the served definitions with those that their server has now: digests by name.

        A definition that was missing for a while is served again at once; one that has changed in between is not.
        """
        events: list[DefinitionStatusChanged] = []
        self._found[upstream] = found
        for tool in tools:
            name = get_definition_key(tool)
            before = self._withheld.get((upstream, name))
            after = self._check(upstream, name, tool.pinned_digest, found.get(name))
            if after is None and before is not None:
                del self._withheld[upstream, name]
                events.append(DefinitionStatusChanged(before, lifted=True))
            elif after is not None and before is not None and before.why == after.why == "not-locked":
                self._withheld[upstream, name] = after
            elif after is not None and (before is None or (before.why, before.digest) != (after.why, after.digest)):
                self._withheld[upstream, name] = after
                events.append(DefinitionStatusChanged(after))
        self.changes[upstream] += len(events)
        if upstream in self._seen:
            self._seen[upstream].set()
        if events and self.on_change is not None:
            self.on_change(events)
        return events

    def _check(self, upstream: str, name: str, pinned: str | None, found: str | None) -> BlockedDefinition | None:
        if found is None:
            return BlockedDefinition(upstream, name, "gone", now())
        if pinned is None:
            return BlockedDefinition(upstream, name, "not-locked", now(), found)
        key, pin = (upstream, name), _Pin(pinned, self._confirmed.get(upstream))
        if pinned != found:
            if self._met.get(key) == pin:  # otherwise it has never been the locked one
                self._flipped[key] = pin
            return BlockedDefinition(upstream, name, "changed", now(), found)
        if self._flipped.get(key) == pin:
            return BlockedDefinition(upstream, name, "changed-back", now(), found)
        self._met[key] = pin
        return None


def get_definition_key(pinned: PinnedDefinition) -> str:
    """Return the key of a tool, prompt or template among the definitions of its server."""
    if isinstance(pinned, DeclaredTool):
        return pinned.remote_name or ""
    return format_definition_key(
        pinned.remote_name, "prompt" if isinstance(pinned, DeclaredDefinition) else "resourceTemplate"
    )
