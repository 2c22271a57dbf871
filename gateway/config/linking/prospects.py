"""Tools that are not known yet: whether a selection that chooses nothing today could choose one of them.

An upstream's tools are known once they have been looked at. Until then one stand-in per upstream has the trust that
its tools will have; what they are called nobody knows.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from gateway.config.linking.entries import Entries
from gateway.config.linking.tools import imported_tools
from gateway.config.linking.trust import TrustScale
from gateway.config.specs.upstreams import UpstreamDocument
from gateway.governance.catalogues import GovernedTool, Selector
from gateway.governance.imports import ImportedDefinition, imported_tool
from gateway.governance.trust import with_implied


def find_prospects(
    entries: Entries, scale: TrustScale, *, imports: Collection[ImportedDefinition]
) -> list[GovernedTool]:
    known = {each.upstream for each in imports}
    found: list[GovernedTool] = []
    for name, upstream in entries.of(UpstreamDocument).items():
        if name not in known:
            stand_ins, _ = imported_tools(upstream, scale, brought=[imported_tool(name, "", is_pinned=True)])
            flags = [flag for each in upstream.document.spec.import_.tools.values() for flag in each.flags]
            more = with_implied(flags, scale.flags)
            governed = [tool.governed for tool in stand_ins.values()]
            found += [replace(each, flags=each.flags | more) for each in governed]
    return found


def could_choose(selector: Selector, prospects: Sequence[GovernedTool]) -> bool:
    return any(_reaches(selector, tool) for tool in prospects)


def _reaches(selector: Selector, stand_in: GovernedTool) -> bool:
    names = (*selector.tools, *selector.prompts, *selector.resources)
    by_name = not names or any(_meets(pattern, stand_in.name) for pattern in names)
    return by_name and replace(selector, tools=(), prompts=(), resources=()).chooses(stand_in)


def _meets(pattern: str, start: str) -> bool:
    """Whether a name that begins so could fit the pattern."""
    head, star, _ = pattern.partition("*")
    return head.startswith(start) or (bool(star) and start.startswith(head))
