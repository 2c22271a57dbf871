"""Tools of upstreams whose definition is not the one that somebody looked at: neither listed nor called.

It is asked in every call of an upstream's tool. Whoever watches the upstreams says what they bring now; nothing here
reaches for a server.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, NamedTuple

from gateway.core.events import Event, now
from gateway.errors import Refused
from gateway.governance.imports import DefinitionKind
from gateway.snapshot import DeclaredTool, Offer

_KINDS: Final[Mapping[DefinitionKind, str]] = {"prompt": "prompt ", "resourceTemplate": "template "}


def known_name(name: str, kind: DefinitionKind = "tool") -> str:
    """What a definition is called among the names of a server: a tool, a prompt and a template may have the same."""
    return _KINDS.get(kind, "") + name


@dataclass(frozen=True, slots=True)
class PinnedTemplate:
    """A template of resources as it was locked."""

    remote_name: str
    pinned_digest: str | None


Pinned = DeclaredTool | Offer | PinnedTemplate
"""What is served as it was locked, or not at all."""


Why = Literal["changed", "changed-back", "gone", "not-locked"]

COMPARED_WITHIN: Final = 10.0
"""Seconds that the first call of a tool waits until its definition has been seen."""

_WORDS: Final[Mapping[Why, str]] = {
    "changed": "its definition is no longer the one that was looked at",
    "changed-back": "its definition was another one in between",
    "gone": "its server does not have it any more",
    "not-locked": "nobody has looked at its definition",
}


@dataclass(frozen=True, slots=True)
class Withheld:
    """A tool that is not served, since when, and what its server says it is now. Prompts and templates say so."""

    upstream: str
    tool: str
    why: Why
    since: datetime
    digest: str | None = None

    @property
    def kind(self) -> DefinitionKind:
        return next((kind for kind, start in _KINDS.items() if self.tool.startswith(start)), "tool")

    @property
    def words(self) -> str:
        return _WORDS[self.why]

    def as_data(self) -> dict[str, Any]:
        return {
            "upstream": self.upstream,
            "tool": self.tool,
            "why": self.why,
            "because": self.words,
            "since": self.since.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "digest": self.digest,
        }


class DefinitionChanged(Refused):
    """What the caller of a withheld tool reads."""

    code = "E_DEFINITION_CHANGED"

    def __init__(self, withheld: Withheld) -> None:
        super().__init__(f"the tool is withheld: {withheld.words}", help="ask the operators of the gateway")
        self.withheld = withheld


class NotCompared(Refused):
    code = "E_DEFINITION_UNSEEN"
    status = 503
    default_message = "the tool's definition could not be compared with the one that was looked at"


@dataclass(slots=True)
class DefinitionTurned(Event):
    """A tool is withheld from now on, for a reason, or, if `lifted`, is served again."""

    name: ClassVar[str] = "definitionTurned"
    withheld: Withheld
    lifted: bool = False


@dataclass(slots=True)
class DefinitionTaken(Event):
    """A definition of an upstream whose changes are accepted is served as it is by now, or not any more."""

    name: ClassVar[str] = "definitionTaken"
    upstream: str
    definition: str
    kind: DefinitionKind
    what: Literal["added", "changed", "removed"]
    digest: str | None = None


class _Looked(NamedTuple):
    """A definition that somebody looked at, and when that was confirmed."""

    digest: str
    confirmed: str | None


@dataclass(slots=True)
class Vigil:
    """What is withheld now. `changes` counts by upstream how often a definition differed, or was the old one again."""

    on_change: Callable[[list[DefinitionTurned]], None] | None = None
    changes: Counter[str] = field(default_factory=Counter)
    _withheld: dict[tuple[str, str], Withheld] = field(default_factory=dict)
    _seen: dict[str, asyncio.Event] = field(default_factory=dict)
    _found: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _confirmed: dict[str, str | None] = field(default_factory=dict)
    _met: dict[tuple[str, str], _Looked] = field(default_factory=dict)
    """Definitions that a server has had as they were looked at."""
    _flipped: dict[tuple[str, str], _Looked] = field(default_factory=dict)
    """Those of them that have been others since."""

    def heir(self, upstreams: Iterable[str]) -> "Vigil":
        """For the next revision: what is known of these upstreams stays known, and what was counted stays counted.

        That a definition has been another one is not forgotten, wherever its server is by now.
        """
        heir = Vigil(changes=self.changes, _met=dict(self._met), _flipped=dict(self._flipped))
        for upstream in upstreams:
            if upstream in self._found:
                heir._found[upstream] = self._found[upstream]
                heir._withheld |= {key: each for key, each in self._withheld.items() if key[0] == upstream}
        return heir

    def withheld(self, upstream: str, tool: str) -> Withheld | None:
        return self._withheld.get((upstream, tool))

    def all(self) -> list[Withheld]:
        return [self._withheld[key] for key in sorted(self._withheld)]

    def is_seen(self, upstream: str) -> bool:
        return upstream not in self._seen or self._seen[upstream].is_set()

    def expect(self, upstream: str) -> None:
        """Have calls wait until the definitions of an upstream were compared for the first time."""
        if upstream not in self._found:
            self._seen.setdefault(upstream, asyncio.Event())

    async def all_seen(self) -> None:
        """Wait until every upstream that calls would wait for was compared."""
        for event in tuple(self._seen.values()):
            await event.wait()

    def begin(self, upstream: str, tools: Collection[Pinned], *, confirmed: str | None = None) -> None:
        """Withhold what nobody locked, and, of an upstream that is known already, what is not what was looked at.

        `confirmed` is when somebody last said that what the lock has is to be served, whatever it was in between.
        """
        self._confirmed[upstream] = confirmed
        for tool in tools:
            name = name_of(tool)
            if (upstream, name) in self._withheld:
                continue
            if tool.pinned_digest is None:
                self._withheld[upstream, name] = Withheld(upstream, name, "not-locked", now())
            elif self._flipped.get((upstream, name)) == _Looked(tool.pinned_digest, confirmed):
                self._withheld[upstream, name] = Withheld(upstream, name, "changed-back", now())
        if upstream in self._found:
            served = {name_of(tool) for tool in tools}
            gone = [key for key in self._withheld if key[0] == upstream and key[1] not in served]
            for key in gone:
                del self._withheld[key]
            self.see(upstream, tools, self._found[upstream])

    async def compared(self, upstream: str, *, within: float = COMPARED_WITHIN) -> None:
        """Wait for the first comparison. Raises `NotCompared` if there is none in time."""
        event = self._seen.get(upstream)
        if event is None or event.is_set():
            return
        try:
            async with asyncio.timeout(within):
                await event.wait()
        except TimeoutError:
            raise NotCompared(help="the server does not answer: try again later") from None

    def see(self, upstream: str, tools: Iterable[Pinned], found: Mapping[str, str]) -> list[DefinitionTurned]:
        """Compare the tools that we serve with what their server brings now: digests by name.

        A tool that was gone for a while is served again, at once; one that was another in between is not.
        """
        turned: list[DefinitionTurned] = []
        self._found[upstream] = found
        for tool in tools:
            name = name_of(tool)
            before = self._withheld.get((upstream, name))
            after = self._judged(upstream, name, tool.pinned_digest, found.get(name))
            if after is None and before is not None:
                del self._withheld[upstream, name]
                turned.append(DefinitionTurned(before, lifted=True))
            elif after is not None and before is not None and before.why == after.why == "not-locked":
                self._withheld[upstream, name] = after
            elif after is not None and (before is None or (before.why, before.digest) != (after.why, after.digest)):
                self._withheld[upstream, name] = after
                turned.append(DefinitionTurned(after))
        self.changes[upstream] += len(turned)
        if upstream in self._seen:
            self._seen[upstream].set()
        if turned and self.on_change is not None:
            self.on_change(turned)
        return turned

    def _judged(self, upstream: str, name: str, pinned: str | None, found: str | None) -> Withheld | None:
        if found is None:
            return Withheld(upstream, name, "gone", now())
        if pinned is None:
            return Withheld(upstream, name, "not-locked", now(), found)
        key, looked = (upstream, name), _Looked(pinned, self._confirmed.get(upstream))
        if pinned != found:
            if self._met.get(key) == looked:  # else it has yet to become what is locked
                self._flipped[key] = looked
            return Withheld(upstream, name, "changed", now(), found)
        if self._flipped.get(key) == looked:
            return Withheld(upstream, name, "changed-back", now(), found)
        self._met[key] = looked
        return None


def name_of(pinned: Pinned) -> str:
    """What a tool, a prompt or a template is known by among what its server has."""
    if isinstance(pinned, DeclaredTool):
        return pinned.remote_name or ""
    return known_name(pinned.remote_name, "prompt" if isinstance(pinned, Offer) else "resourceTemplate")
