"""The names under which catalogues advertise tools: import prefixes, collisions, look-alikes, reserved names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.config.kinds.catalogues import (
    CatalogueDocument,
    CollisionPolicyDocument,
    CollisionPolicySpec,
    ImportPrefixSpec,
    NamePolicySpec,
)
from gateway.config.linking.document_index import DocumentEntry, DocumentIndex
from gateway.model import globs_overlap
from gateway.registries import (
    Collision,
    CollisionPolicy,
    CollisionRules,
    DeclaredDefinition,
    DeclaredTool,
    Diagnostic,
    MergedTools,
    NamedTool,
    merge_tools,
)

DECLARED_SOURCE: Final = "tools"


@dataclass(frozen=True, slots=True)
class ToolNames:
    """Tools by advertised name, and every collision with its outcome."""

    tools: Mapping[str, DeclaredTool]
    collisions: tuple[Collision, ...]


def link_collision_policies(entries: DocumentIndex) -> dict[str, CollisionPolicy]:
    return {name: _policy(name, entry.document.spec) for name, entry in entries.of(CollisionPolicyDocument).items()}


def import_prefix(policy: CollisionPolicy, upstream: str) -> str:
    """Return the prefix that a policy puts before the names of an upstream's tools."""
    return policy.prefix.replace("{upstream}", upstream)


def assign_tool_names(
    catalogue: DocumentEntry[CatalogueDocument], tools: Sequence[DeclaredTool], policy: CollisionPolicy
) -> tuple[ToolNames, list[Diagnostic]]:
    """Assign the catalogue's tool names by the policy, in its declared order of sources."""
    in_order = sorted(tools, key=lambda tool: policy.order.index(_group(tool)))  # stable: files, upstreams by name
    incoming = [_name_tool(tool, policy) for tool in in_order]
    # Keyed by identity: upstreams choose their names, so source and name do not identify a tool.
    tool_of = {id(named): tool for named, tool in zip(incoming, in_order, strict=True)}
    merged = merge_tools(incoming, policy.rules)
    advertised = {named.name: tool_of[id(named)] for named in merged.tools}
    return ToolNames(advertised, merged.collisions), list(_find_problems(catalogue, merged, policy.name))


@dataclass(frozen=True, slots=True)
class PromptNames:
    """Prompts by advertised name, and every collision with its outcome."""

    prompts: Mapping[str, DeclaredDefinition]
    collisions: tuple[Collision, ...]


def assign_prompt_names(
    catalogue: DocumentEntry[CatalogueDocument], prompts: Sequence[DeclaredDefinition], policy: CollisionPolicy
) -> tuple[PromptNames, list[Diagnostic]]:
    """Assign the catalogue's prompt names. A tool and a prompt may have the same name."""
    incoming = [_to_named_tool(import_prefix(policy, each.upstream) + each.remote_name, each) for each in prompts]
    offer_of = {id(named): each for named, each in zip(incoming, prompts, strict=True)}
    merged = merge_tools(incoming, policy.rules)
    named = {each.name: offer_of[id(each)] for each in merged.tools}
    collisions = tuple(replace(each, kind="prompt") for each in merged.collisions)
    return PromptNames(named, collisions), list(_find_problems(catalogue, merged, policy.name, what="prompt"))


def find_shared_uris(groups: Sequence[DeclaredDefinition]) -> Iterator[Collision]:
    """Report URI patterns that match groups of two upstreams. The first, most trusted group gets the URI."""
    for index, incoming in enumerate(groups):
        for existing in groups[:index]:
            pattern = _find_shared_pattern(existing, incoming) if existing.upstream != incoming.upstream else None
            if pattern is not None:
                pair = (_name_group(existing, pattern), _name_group(incoming, pattern))
                reason = "the most trusted group that matches a URI gets it, or the first of equally trusted groups"
                yield Collision(*pair, "keep", reason, "resource")


def _find_shared_pattern(existing: DeclaredDefinition, incoming: DeclaredDefinition) -> str | None:
    """Return the first pattern of the incoming group that overlaps with one of the existing group."""
    return next((each for each in incoming.uris if any(globs_overlap(each, theirs) for theirs in existing.uris)), None)


def _name_group(group: DeclaredDefinition, pattern: str) -> NamedTool:
    return _to_named_tool(pattern, group)


def _policy(name: str, spec: CollisionPolicySpec) -> CollisionPolicy:
    names = spec.names or NamePolicySpec.model_construct()
    rules = CollisionRules(
        on_collision=spec.on_collision,
        honour_tool=spec.honour_tool,
        compare=names.compare,
        look_alikes=names.lookalikes,
        reserved=names.reserved,
    )
    prefix = (spec.imports or ImportPrefixSpec.model_construct()).prefix
    return CollisionPolicy(name, rules, prefix, spec.order)


def _group(tool: DeclaredTool) -> str:
    return "upstreams" if tool.is_imported else DECLARED_SOURCE


def _name_tool(tool: DeclaredTool, policy: CollisionPolicy) -> NamedTool:
    if not tool.is_imported:
        return _to_named_tool(tool.name, tool, source=DECLARED_SOURCE)
    return _to_named_tool(import_prefix(policy, tool.upstream or "") + (tool.remote_name or ""), tool)


def _to_named_tool(name: str, holder: DeclaredTool | DeclaredDefinition, *, source: str | None = None) -> NamedTool:
    """Return a tool, prompt or resource group under a name, with the trust that decides collisions."""
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


def _owner(tool: NamedTool) -> str:
    return "" if not tool.is_imported else f" of upstream {tool.source!r}"


def _find_problems(
    catalogue: DocumentEntry[CatalogueDocument], merged: MergedTools, policy: str, *, what: str = "tool"
) -> Iterator[Diagnostic]:
    here = ("in the catalogue", catalogue.position)
    for collision in merged.collisions:
        if collision.is_error:
            existing, incoming = collision.existing, collision.incoming
            taken = f"is taken by {existing.name!r}{_owner(existing)}"
            message = f"the name {incoming.name!r}{_owner(incoming)} {taken} ({collision.reason})"
            help = (
                "rename one of them, give imports a prefix, or exclude one from the catalogue; no policy can allow this"
                if collision.is_about_trust
                else f"rename one of them, or set onCollision: replace or keep in CollisionPolicy {policy}"
            )
            related = [(f"the other {what}", existing.position), here]
            yield Diagnostic("name-collision", message, incoming.position, help=help, related=related)
    for pair in merged.look_alikes:
        first, second = pair.first, pair.second
        message = f"the name {second.name!r}{_owner(second)} looks like {first.name!r}{_owner(first)}"
        related = [(f"the other {what}", pair.first.position), here]
        yield Diagnostic("look-alike", message, pair.second.position, help="rename one of them", related=related)
    for tool in merged.reserved:
        message = f"the name {tool.name!r} is reserved"
        yield Diagnostic("reserved-name", message, tool.position, help="choose another name", related=[here])
