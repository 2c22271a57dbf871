"""Who owns what: tools, prompts and resources by their documents, callers by the `owners` of an identity provider."""

from collections.abc import Iterable, Iterator, Mapping

from gateway.model import CONFIG_OBJECT, Principal
from gateway.registries import Snapshot

_PEOPLE = ("user:", "role:")
"""Prefixes of names that need no owner: a person answers for himself, and a role has no credential."""


def find_caller_owners(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the team of each subject that an identity provider declares an owner for."""
    providers = snapshot.documents.get("IdentityProvider", {}).values()
    return {subject: team for each in providers for subject, team in each.data["spec"].get("owners", {}).items()}


def find_ownerless_callers(snapshot: Snapshot, callers: Iterable[Principal]) -> list[str]:
    """Return the agents and services that no identity provider declares an owner for."""
    owned = find_caller_owners(snapshot)
    subjects = {each.subject for each in callers}
    return sorted(each for each in subjects if not each.startswith(_PEOPLE) and each not in owned)


def find_object_owners(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the owner of each object, by its name in policies, as far as it has one.

    An imported tool, a prompt and a group of resources belong to the owner of their upstream, `config` to that of the
    Gateway.
    """
    upstreams = {name: each.owner for name, each in snapshot.documents.get("Upstream", {}).items()}
    found = {offer.object: upstreams.get(offer.upstream) for offer in snapshot.offers.values()}
    for tool in snapshot.tools.values():
        found[tool.object] = tool.owner or upstreams.get(tool.upstream or "")
    found[CONFIG_OBJECT] = next((each.owner for each in snapshot.documents.get("Gateway", {}).values()), None)
    return {object: owner for object, owner in found.items() if owner is not None}


def list_owners(snapshot: Snapshot) -> list[str]:
    """Return every owner of a published tool, prompt or group of resources, of a caller, or of the configuration."""
    owners = find_object_owners(snapshot)
    found = {owners[each] for each in (CONFIG_OBJECT, *_list_published(snapshot)) if each in owners}
    return sorted(found | set(find_caller_owners(snapshot).values()))


def _list_published(snapshot: Snapshot) -> Iterator[str]:
    for catalogue in snapshot.catalogues.values():
        yield from (f"tool:{identity}" for identity in catalogue.tools.values())
        yield from catalogue.prompts.values()
        yield from catalogue.resources
