"""Prompts and resources of other servers, for one caller: listing them and finding one to read.

Lists and reads use the same decision, so neither reveals more than the other. A URI is the server's own: the groups
that documents declare determine which server it belongs to. This module does not know any transport.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from gateway.engine.gates.definition_guard import DefinitionGuard, format_definition_key, get_definition_key
from gateway.errors import Missing
from gateway.model import BackendError, CallerChannel, Principal, glob_matches
from gateway.policy import Access, KillSwitch, Validity
from gateway.registries import DeclaredDefinition

Json = dict[str, Any]
Refusal = Literal["unknown-tool", "quarantined", "definition-changed", "config-expired"]

_PLACEHOLDER: Final = re.compile(r"\{[^{}]*\}")

MAX_RESOURCES: Final = 2_000
"""Resources of all servers in one list; the others can still be read."""


class ResourceClient(Protocol):
    """Access to the servers of prompts and resources."""

    async def fetch(
        self,
        upstream: str,
        method: str,
        params: Mapping[str, Any],
        *,
        client: CallerChannel | None,
        principal: Principal,
    ) -> Json:
        """Return a result that requests no further input. Raise `BackendError`."""
        ...

    async def resources(self, upstream: str) -> list[Json]:
        """Return every resource that a server lists now, as it describes them."""
        ...

    def subscribe(self, upstream: str, uri: str) -> Callable[[], None]:
        """Subscribe to changes of a resource; calling the returned function ends the subscription."""
        ...

    def supports_completion(self, upstream: str) -> bool:
        """Whether a server declares that it completes arguments."""
        ...


@dataclass(frozen=True, slots=True)
class ChangeNotification:
    """A notification that a server sends to all clients: a list changed, or a resource."""

    upstream: str
    method: str
    uri: str | None = None


class UnknownResource(Missing):
    """The prompt or resource does not exist, or not for this caller: both look the same. `because` is for the log."""

    default_message = "there is no such prompt or resource"

    def __init__(self, because: Refusal = "unknown-tool") -> None:
        super().__init__()
        self.because: Refusal = because


class ResourceCatalogue:
    """The prompts and resources of one revision. `remote` reaches the servers."""

    def __init__(
        self,
        access: Access,
        remote: ResourceClient,
        *,
        switch: KillSwitch | None,
        definition_guard: DefinitionGuard | None,
        validity: Validity | None = None,
    ) -> None:
        self.remote = remote
        self._access = access
        self._switch = switch
        self._vigil = definition_guard
        self._validity = validity

    def kinds(self, catalogue: str) -> frozenset[str]:
        """Return the kinds of definitions that a catalogue has for any caller: "prompt", "resource"."""
        found = self._access.snapshot.catalogues.get(catalogue)
        if found is None:
            return frozenset()
        return frozenset({*(["prompt"] if found.prompts else ()), *(["resource"] if found.resources else ())})

    def supports_completion(self, catalogue: str) -> bool:
        """Whether any server of the catalogue declares that it completes arguments."""
        return any(self.remote.supports_completion(each.upstream) for each in self._all(catalogue))

    def prompts(self, principal: Principal, catalogue: str) -> list[tuple[str, DeclaredDefinition]]:
        """Return the prompts that a caller may use, by advertised name."""
        found = self._access.snapshot.catalogues[catalogue]
        named = [(name, self._access.snapshot.offers[key]) for name, key in sorted(found.prompts.items())]
        return [(name, each) for name, each in named if self._is_for(principal, catalogue, each)]

    def groups(self, principal: Principal, catalogue: str) -> list[DeclaredDefinition]:
        """Return the groups of resources that a caller may read."""
        found = self._access.snapshot.catalogues[catalogue]
        groups = [self._access.snapshot.offers[key] for key in found.resources]
        return [each for each in groups if self._is_for(principal, catalogue, each)]

    def find_prompt(self, principal: Principal, catalogue: str, name: Any) -> DeclaredDefinition:
        """Raise `UnknownResource` if the caller may not use the prompt."""
        key = self._access.snapshot.catalogues[catalogue].prompts.get(name) if isinstance(name, str) else None
        offer = None if key is None else self._access.snapshot.offers[key]
        if offer is None or not self._access.decide_definition(principal, catalogue=catalogue, offer=offer).allowed:
            raise UnknownResource()
        return self._require(principal, offer)

    async def wait_for_comparison(
        self, principal: Principal, offer: DeclaredDefinition, uri: str | None = None
    ) -> None:
        """Wait until an upstream was compared for the first time. Raise `UnknownResource` if it is blocked then."""
        is_pinned = offer.kind == "prompt" or offer.templates
        if is_pinned and self._vigil is not None and not self._vigil.is_compared(offer.upstream):
            await self._vigil.wait_compared(offer.upstream)
            self._require(principal, offer, uri)

    def find_group(self, principal: Principal, catalogue: str, uri: Any) -> DeclaredDefinition:
        """Return the first group of a URI that the caller may read. Raise `UnknownResource`."""
        found = self._access.snapshot.catalogues[catalogue]
        for key in found.resources if isinstance(uri, str) else ():
            offer = self._access.snapshot.offers[key]
            if (
                offer.matches_uri(uri)
                and self._access.decide_definition(principal, catalogue=catalogue, offer=offer).allowed
            ):
                return self._require(principal, offer, uri)
        raise UnknownResource()

    async def resources(self, principal: Principal, catalogue: str) -> list[tuple[DeclaredDefinition, Json]]:
        """Return what servers list now, as far as the caller may read it. A server that fails lists nothing."""
        groups = self.groups(principal, catalogue)
        found: list[tuple[DeclaredDefinition, Json]] = []
        seen: set[str] = set()
        for upstream in dict.fromkeys(each.upstream for each in groups):
            try:
                listed = await self.remote.resources(upstream)
            except BackendError:
                continue
            for each in listed:
                uri = each.get("uri")
                if not isinstance(uri, str) or uri in seen:
                    continue
                owner = next((group for group in groups if group.matches_uri(uri)), None)
                if owner is not None and owner.upstream == upstream and not self._is_withheld(owner, uri):
                    seen.add(uri)
                    found.append((owner, each))
        return found[:MAX_RESOURCES]

    def templates(self, principal: Principal, catalogue: str) -> list[tuple[DeclaredDefinition, Mapping[str, Any]]]:
        groups = self.groups(principal, catalogue)
        return [(group, each) for group in groups for each in group.templates if not self._is_changed(group, each)]

    def _all(self, catalogue: str) -> Sequence[DeclaredDefinition]:
        found = self._access.snapshot.catalogues.get(catalogue)
        keys = (*found.prompts.values(), *found.resources) if found is not None else ()
        return [self._access.snapshot.offers[key] for key in keys]

    def _is_for(self, principal: Principal, catalogue: str, offer: DeclaredDefinition) -> bool:
        if not self._access.decide_definition(principal, catalogue=catalogue, offer=offer).allowed:
            return False
        return self._find_stop(principal, offer) is None

    def _require(self, principal: Principal, offer: DeclaredDefinition, uri: str | None = None) -> DeclaredDefinition:
        """Return the definition. Raise `UnknownResource` if it is stopped, as if it did not exist."""
        because = self._find_stop(principal, offer)
        if because is not None:
            raise UnknownResource(because)
        if uri is not None and self._is_withheld(offer, uri):
            raise UnknownResource("definition-changed")
        return offer

    def _is_withheld(self, group: DeclaredDefinition, uri: str) -> bool:
        """Whether a URI may match a template that differs from the locked one."""
        changed = (each for each in group.templates if self._is_changed(group, each))
        return any(glob_matches(uri, _PLACEHOLDER.sub("*", each["uriTemplate"])) for each in changed)

    def _is_changed(self, group: DeclaredDefinition, template: Mapping[str, Any]) -> bool:
        name = format_definition_key(template["name"], "resourceTemplate")
        return self._vigil is not None and self._vigil.find_blocked(group.upstream, name) is not None

    def _find_stop(self, principal: Principal, offer: DeclaredDefinition) -> Refusal | None:
        if self._validity is not None and self._validity.is_refused(is_consequential=False):
            return "config-expired"
        if self._switch is not None:
            stopped = self._switch.find_stop(
                tool=offer.name, subject=principal.subject, upstream=offer.upstream, is_consequential=False
            )
            if stopped is not None:
                return "quarantined"
        if self._vigil is None or offer.kind != "prompt":
            return None
        return "definition-changed" if self._vigil.find_blocked(offer.upstream, get_definition_key(offer)) else None
