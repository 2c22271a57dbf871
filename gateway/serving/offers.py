"""Prompts and resources of other servers, for one caller: what there is to have, and having it.

What is listed and what can be had is decided by the same question, so neither knows more than the other. A URI is the
server's own: whose it is follows from the groups that documents declare. Nothing here knows a wire.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from gateway.access import Access
from gateway.errors import Missing
from gateway.governance.globs import glob_matches
from gateway.governance.ports import BackendFailed
from gateway.governance.principals import Principal
from gateway.governance.quarantines import KillSwitch
from gateway.governance.validity import Validity
from gateway.serving.current import Client
from gateway.serving.withholding import Vigil, known_name, name_of
from gateway.snapshot import Offer

Json = dict[str, Any]
Refusal = Literal["unknown-tool", "quarantined", "definition-changed", "config-expired"]

_PLACEHOLDER: Final = re.compile(r"\{[^{}]*\}")

MOST_RESOURCES: Final = 2_000
"""Resources of all servers that are listed at once; the rest can be read all the same."""


class Remote(Protocol):
    """The servers that offers come from."""

    async def asked(
        self, upstream: str, method: str, params: Mapping[str, Any], *, client: Client | None, principal: Principal
    ) -> Json:
        """A result that asks for nothing more. Raises `BackendFailed`."""
        ...

    async def resources(self, upstream: str) -> list[Json]:
        """Every resource that a server lists now, as it describes them."""
        ...

    def subscribe(self, upstream: str, uri: str) -> Callable[[], None]:
        """Have a server announce changes of a resource until what is given back is called."""
        ...

    def completes(self, upstream: str) -> bool:
        """Whether a server says that it completes arguments."""
        ...


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a server says to nobody in particular: that a list changed, or a resource."""

    upstream: str
    method: str
    uri: str | None = None


class NotOffered(Missing):
    """There is no such thing, or it is not there for whoever asks: nobody learns which. `because` is for the log."""

    default_message = "there is no such thing"

    def __init__(self, because: Refusal = "unknown-tool") -> None:
        super().__init__()
        self.because: Refusal = because


class Offers:
    """Of one revision. `remote` reaches the servers; without it nothing can be had."""

    def __init__(
        self,
        access: Access,
        remote: Remote,
        *,
        switch: KillSwitch | None,
        vigil: Vigil | None,
        validity: Validity | None = None,
    ) -> None:
        self.remote = remote
        self._access = access
        self._switch = switch
        self._vigil = vigil
        self._validity = validity

    def kinds(self, catalogue: str) -> frozenset[str]:
        """Which kinds of offers a catalogue has for anybody: "prompt", "resource"."""
        found = self._access.snapshot.catalogues.get(catalogue)
        if found is None:
            return frozenset()
        return frozenset({*(["prompt"] if found.prompts else ()), *(["resource"] if found.resources else ())})

    def completes(self, catalogue: str) -> bool:
        """Whether any server of the catalogue's offers says that it completes arguments."""
        return any(self.remote.completes(each.upstream) for each in self._all(catalogue))

    def prompts(self, principal: Principal, catalogue: str) -> list[tuple[str, Offer]]:
        """The prompts that a caller may have, by advertised name."""
        found = self._access.snapshot.catalogues[catalogue]
        named = [(name, self._access.snapshot.offers[key]) for name, key in sorted(found.prompts.items())]
        return [(name, each) for name, each in named if self._is_for(principal, catalogue, each)]

    def groups(self, principal: Principal, catalogue: str) -> list[Offer]:
        """The groups of resources that a caller may read."""
        found = self._access.snapshot.catalogues[catalogue]
        groups = [self._access.snapshot.offers[key] for key in found.resources]
        return [each for each in groups if self._is_for(principal, catalogue, each)]

    def prompt(self, principal: Principal, catalogue: str, name: Any) -> Offer:
        """Raises `NotOffered`."""
        key = self._access.snapshot.catalogues[catalogue].prompts.get(name) if isinstance(name, str) else None
        offer = None if key is None else self._access.snapshot.offers[key]
        if offer is None or not self._access.offers(principal, catalogue=catalogue, offer=offer).allowed:
            raise NotOffered()
        return self._unstopped(principal, offer)

    async def seen(self, principal: Principal, offer: Offer, uri: str | None = None) -> None:
        """Wait until an upstream was compared for the first time. Raises `NotOffered` for what is withheld of it."""
        is_pinned = offer.kind == "prompt" or offer.templates
        if is_pinned and self._vigil is not None and not self._vigil.is_seen(offer.upstream):
            await self._vigil.compared(offer.upstream)
            self._unstopped(principal, offer, uri)

    def owner(self, principal: Principal, catalogue: str, uri: Any) -> Offer:
        """The group that a URI is of: the first that the caller may read. Raises `NotOffered`."""
        found = self._access.snapshot.catalogues[catalogue]
        for key in found.resources if isinstance(uri, str) else ():
            offer = self._access.snapshot.offers[key]
            if offer.owns(uri) and self._access.offers(principal, catalogue=catalogue, offer=offer).allowed:
                return self._unstopped(principal, offer, uri)
        raise NotOffered()

    async def resources(self, principal: Principal, catalogue: str) -> list[tuple[Offer, Json]]:
        """What servers list now, as far as the caller may read it. A server that does not answer lists nothing."""
        groups = self.groups(principal, catalogue)
        found: list[tuple[Offer, Json]] = []
        seen: set[str] = set()
        for upstream in dict.fromkeys(each.upstream for each in groups):
            try:
                listed = await self.remote.resources(upstream)
            except BackendFailed:
                continue
            for each in listed:
                uri = each.get("uri")
                if not isinstance(uri, str) or uri in seen:
                    continue
                owner = next((group for group in groups if group.owns(uri)), None)
                if owner is not None and owner.upstream == upstream and not self._is_withheld(owner, uri):
                    seen.add(uri)
                    found.append((owner, each))
        return found[:MOST_RESOURCES]

    def templates(self, principal: Principal, catalogue: str) -> list[tuple[Offer, Mapping[str, Any]]]:
        groups = self.groups(principal, catalogue)
        return [(group, each) for group in groups for each in group.templates if not self._is_changed(group, each)]

    def _all(self, catalogue: str) -> Sequence[Offer]:
        found = self._access.snapshot.catalogues.get(catalogue)
        keys = (*found.prompts.values(), *found.resources) if found is not None else ()
        return [self._access.snapshot.offers[key] for key in keys]

    def _is_for(self, principal: Principal, catalogue: str, offer: Offer) -> bool:
        if not self._access.offers(principal, catalogue=catalogue, offer=offer).allowed:
            return False
        return self._stopped(principal, offer) is None

    def _unstopped(self, principal: Principal, offer: Offer, uri: str | None = None) -> Offer:
        """What was stopped is as little there as what never was."""
        because = self._stopped(principal, offer)
        if because is not None:
            raise NotOffered(because)
        if uri is not None and self._is_withheld(offer, uri):
            raise NotOffered("definition-changed")
        return offer

    def _is_withheld(self, group: Offer, uri: str) -> bool:
        """Whether a URI could be made of a template that is not what was locked."""
        changed = (each for each in group.templates if self._is_changed(group, each))
        return any(glob_matches(uri, _PLACEHOLDER.sub("*", each["uriTemplate"])) for each in changed)

    def _is_changed(self, group: Offer, template: Mapping[str, Any]) -> bool:
        name = known_name(template["name"], "resourceTemplate")
        return self._vigil is not None and self._vigil.withheld(group.upstream, name) is not None

    def _stopped(self, principal: Principal, offer: Offer) -> Refusal | None:
        if self._validity is not None and self._validity.refuses(is_consequential=False):
            return "config-expired"
        if self._switch is not None:
            stopped = self._switch.stopped_by(
                tool=offer.name, subject=principal.subject, upstream=offer.upstream, is_consequential=False
            )
            if stopped is not None:
                return "quarantined"
        if self._vigil is None or offer.kind != "prompt":
            return None
        return "definition-changed" if self._vigil.withheld(offer.upstream, name_of(offer)) else None
