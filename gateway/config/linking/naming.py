"""Names that a catalogue advertises tools under: prefixes of imports, collisions, look-alikes, reserved names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.config.linking.entries import Entries, Entry
from gateway.config.specs.catalogues import CatalogueDocument
from gateway.config.specs.collisions import CollisionPolicyDocument, CollisionPolicySpec, Imports, Names
from gateway.governance.collisions import Collision, CollisionRules, Merged, NamedTool, merge
from gateway.governance.diagnostics import Diagnostic
from gateway.governance.globs import globs_overlap
from gateway.snapshot import CollisionPolicy, DeclaredTool, Offer

DECLARED: Final = "tools"


@dataclass(frozen=True, slots=True)
class NamedTools:
    """Tools under their advertised names, and every collision with its outcome."""

    tools: Mapping[str, DeclaredTool]
    collisions: tuple[Collision, ...]


def link_collision_policies(entries: Entries) -> dict[str, CollisionPolicy]:
    return {name: _policy(name, entry.document.spec) for name, entry in entries.of(CollisionPolicyDocument).items()}


def prefix_of(policy: CollisionPolicy, upstream: str) -> str:
    """What stands before the names of an upstream's tools."""
    return policy.prefix.replace("{upstream}", upstream)


def name_tools(
    catalogue: Entry[CatalogueDocument], tools: Sequence[DeclaredTool], policy: CollisionPolicy
) -> tuple[NamedTools, list[Diagnostic]]:
    """The catalogue's names, settled by the policy in its declared order."""
    in_order = sorted(tools, key=lambda tool: policy.order.index(_group(tool)))  # stable: files, upstreams by name
    incoming = [_named(tool, policy) for tool in in_order]
    # By identity: an upstream may be called what it likes, so a source and a name do not tell two tools apart.
    tool_of = {id(named): tool for named, tool in zip(incoming, in_order, strict=True)}
    merged = merge(incoming, policy.rules)
    advertised = {named.name: tool_of[id(named)] for named in merged.tools}
    return NamedTools(advertised, merged.collisions), list(_problems(catalogue, merged, policy.name))


@dataclass(frozen=True, slots=True)
class NamedPrompts:
    """Prompts under their advertised names, and every collision with its outcome."""

    prompts: Mapping[str, Offer]
    collisions: tuple[Collision, ...]


def name_prompts(
    catalogue: Entry[CatalogueDocument], prompts: Sequence[Offer], policy: CollisionPolicy
) -> tuple[NamedPrompts, list[Diagnostic]]:
    """The same for prompts, which have names of their own: a tool and a prompt may be called alike."""
    incoming = [_standing(prefix_of(policy, each.upstream) + each.remote_name, each) for each in prompts]
    offer_of = {id(named): each for named, each in zip(incoming, prompts, strict=True)}
    merged = merge(incoming, policy.rules)
    named = {each.name: offer_of[id(each)] for each in merged.tools}
    collisions = tuple(replace(each, kind="prompt") for each in merged.collisions)
    return NamedPrompts(named, collisions), list(_problems(catalogue, merged, policy.name, what="prompt"))


def shared_uris(groups: Sequence[Offer]) -> Iterator[Collision]:
    """URIs that two upstreams could have: the group that stands first is asked for them, and trusted ones do."""
    for index, incoming in enumerate(groups):
        for existing in groups[:index]:
            pattern = _shared_pattern(existing, incoming) if existing.upstream != incoming.upstream else None
            if pattern is not None:
                pair = (_uri_holder(existing, pattern), _uri_holder(incoming, pattern))
                reason = "the most trusted group that fits has a URI, the first of equal ones"
                yield Collision(*pair, "keep", reason, "resource")


def _shared_pattern(existing: Offer, incoming: Offer) -> str | None:
    """The first pattern of the incoming group that leads to something of the existing one's."""
    return next((each for each in incoming.uris if any(globs_overlap(each, theirs) for theirs in existing.uris)), None)


def _uri_holder(group: Offer, pattern: str) -> NamedTool:
    return _standing(pattern, group)


def _policy(name: str, spec: CollisionPolicySpec) -> CollisionPolicy:
    names = spec.names or Names.model_construct()
    rules = CollisionRules(
        on_collision=spec.on_collision,
        honour_tool=spec.honour_tool,
        compare=names.compare,
        look_alikes=names.lookalikes,
        reserved=names.reserved,
    )
    prefix = (spec.imports or Imports.model_construct()).prefix
    return CollisionPolicy(name, rules, prefix, spec.order)


def _group(tool: DeclaredTool) -> str:
    return "upstreams" if tool.is_imported else DECLARED


def _named(tool: DeclaredTool, policy: CollisionPolicy) -> NamedTool:
    if not tool.is_imported:
        return _standing(tool.name, tool, source=DECLARED)
    return _standing(prefix_of(policy, tool.upstream or "") + (tool.remote_name or ""), tool)


def _standing(name: str, holder: DeclaredTool | Offer, *, source: str | None = None) -> NamedTool:
    """A tool, prompt or group of resources under a name, with what its trust says about who may have it."""
    trust = holder.trust
    return NamedTool(
        name,
        source or holder.upstream or "",
        trust.tier.rank,
        holder.position,
        holder.on_collision if isinstance(holder, DeclaredTool) else "throw",
        trusted=trust.trusted,
        effects=trust.effects,
        flags=trust.flags,
        is_imported=source is None,
    )


def _whence(tool: NamedTool) -> str:
    return "" if not tool.is_imported else f" of upstream {tool.source!r}"


def _problems(
    catalogue: Entry[CatalogueDocument], merged: Merged, policy: str, *, what: str = "tool"
) -> Iterator[Diagnostic]:
    here = ("in the catalogue", catalogue.position)
    for collision in merged.collisions:
        if collision.is_error:
            existing, incoming = collision.existing, collision.incoming
            taken = f"is taken by {existing.name!r}{_whence(existing)}"
            message = f"the name {incoming.name!r}{_whence(incoming)} {taken} ({collision.reason})"
            help = (
                "rename one of them, give imports a prefix, or exclude one from the catalogue: no policy allows it"
                if collision.is_about_trust
                else f"rename one of them, or let CollisionPolicy {policy} replace or keep"
            )
            related = [(f"the other {what}", existing.position), here]
            yield Diagnostic("name-collision", message, incoming.position, help=help, related=related)
    for pair in merged.look_alikes:
        first, second = pair.first, pair.second
        message = f"the name {second.name!r}{_whence(second)} looks like {first.name!r}{_whence(first)}"
        related = [(f"the other {what}", pair.first.position), here]
        yield Diagnostic("look-alike", message, pair.second.position, help="rename one of them", related=related)
    for tool in merged.reserved:
        message = f"the name {tool.name!r} is reserved"
        yield Diagnostic("reserved-name", message, tool.position, help="choose another name", related=[here])
