"""Who is what, through any number of links: the closure of `g` and `g2` rows, their cycles and their depth.

Nothing recurses and no depth is cut off silently, whatever the rows say.
"""

from collections.abc import Iterable, Mapping

from gateway.authz.rules import Link

Graph = Mapping[str, frozenset[str]]


def graph(links: Iterable[Link]) -> Graph:
    """Each member with the groups it is directly in."""
    direct: dict[str, set[str]] = {}
    for link in links:
        direct.setdefault(link.member.text, set()).add(link.group.text)
    return {member: frozenset(groups) for member, groups in direct.items()}


def reach(names: Iterable[str], direct: Graph) -> frozenset[str]:
    """The names and everything they belong to. Names without a link cost one look and are remembered nowhere."""
    reached = set(names)
    if direct.keys().isdisjoint(reached):
        return frozenset(reached)
    waiting = list(reached)
    while waiting:
        new = direct.get(waiting.pop(), frozenset()) - reached
        reached |= new
        waiting.extend(new)
    return frozenset(reached)


def above(direct: Graph) -> Graph:
    """Each member with every group it is in, however far up."""
    return {member: reach((member,), direct) - {member} for member in direct}


def depths(direct: Graph) -> dict[str, int]:
    """The longest chain of links above each member; members that lead into a cycle have no depth and are left out."""
    members: dict[str, list[str]] = {}
    open_links = {member: len(groups) for member, groups in direct.items()}
    for member, groups in direct.items():
        for group in groups:
            members.setdefault(group, []).append(member)
    depth = {group: 0 for group in members if group not in direct}
    settled = list(depth)
    while settled:
        group = settled.pop()
        for member in members.get(group, ()):
            open_links[member] -= 1
            if open_links[member] == 0:
                depth[member] = 1 + max(depth[above] for above in direct[member])
                settled.append(member)
    return depth


def cycles(direct: Graph) -> list[list[str]]:
    """Each cycle that a walk along links runs into, once, as the names on it in order."""
    settled = depths(direct)
    seen: set[str] = set()
    found = []
    for start in direct:
        walk: list[str] = []
        name = start
        while name not in settled and name not in seen:
            seen.add(name)
            walk.append(name)
            name = min(group for group in direct[name] if group not in settled)
        if name in walk:
            found.append(walk[walk.index(name) :])
    return found
