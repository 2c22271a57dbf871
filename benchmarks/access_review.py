"""The cost of an access review: listing the access of every caller to every tool, its use, idle rows, and growth.

Each of the N tools is in one of N / 500 catalogues, whose audience are all callers. Half of the rows name one tool, the
others a pattern; a caller holds two of 50 roles. `pairs` is the number of combinations of caller, catalogue and tool.
`asked` is the review by asking about pairs one after the other, extrapolated from 20,000 of them. Seconds are CPU time.
"""

import argparse
import resource
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random

from gateway.model import Principal
from gateway.policy import Access, PolicyCell, PolicySet, RoleLink, build_authoriser
from gateway.policy.casbin.policy_files import PermissionRow
from gateway.registries import Catalogue, DeclaredTool, EffectiveTrust, Position, Snapshot, Tier
from gateway.review import AccessScopes, UsageTable, UseCount, find_growth, list_policy_rows, review_access

SIZES = ((100, 100), (1_000, 1_000), (10_000, 1_000))
NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
HERE = Position("policy.csv", 1)
TIERS = (Tier("internal", 0, "first-party"), Tier("partner", 10, "third-party-private"))
TRUST = tuple(EffectiveTrust(tier, frozenset(), False, True) for tier in TIERS)
ROLES = 50
WIDTHS = (6, 7, 7, 11, 7, 8, 8, 8, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=[f"{tools}x{callers}" for tools, callers in SIZES])
    options = parser.parse_args()
    columns = ("tools", "callers", "rows", "pairs", "blocks", "review s", "growth s", "asked s", "MB")
    print(" ".join(f"{each:>{width}}" for each, width in zip(columns, WIDTHS, strict=True)))
    for size in options.sizes:
        tools, _, callers = size.partition("x")
        measure_access(int(tools), int(callers))


def measure_access(tools: int, callers: int) -> None:
    """Print the figures of one size."""
    access, policies = make_access(tools, callers, Random(7))
    rows = list_policy_rows(policies, NOW)
    usage = make_usage(access, callers, Random(8))
    started = time.process_time()
    review = review_access(access, rows, at=NOW, usage=usage)
    took = time.process_time() - started
    started = time.process_time()
    scope = AccessScopes(access, rows, at=NOW).find("team-0")
    assert not list(find_growth(scope, scope))
    growth = time.process_time() - started
    pairs = len(review.callers.principals) * sum(len(each.tools) for each in access.snapshot.catalogues.values())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    asked = ask_pairs(access, callers) * pairs
    figures = (tools, callers, len(policies.permissions), pairs, len(review.blocks), took, growth, asked, memory)
    digits = (0, 0, 0, 0, 0, 1, 1, 0, 0)
    cells = (f"{each:{width},.{count}f}" for each, width, count in zip(figures, WIDTHS, digits, strict=True))
    print(" ".join(cells), flush=True)


def ask_pairs(access: Access, callers: int) -> float:
    """Return the time of one pair: to see, call, read and approve."""
    random, catalogues = Random(9), list(access.snapshot.catalogues.values())
    started = time.process_time()
    for _ in range(20_000):
        principal, catalogue = Principal(f"user:u{random.randrange(callers)}"), random.choice(catalogues)
        tool = access.snapshot.tools[random.choice(list(catalogue.tools))]
        if access.is_in_audience(principal, catalogue.name):
            access.decide_discovery(principal, catalogue.name, tool)
            access.permits(principal, catalogue.name, tool)
            access.permits(principal, catalogue.name, access.snapshot.query("artifact_content", tool))
            access.decide_approval(principal, catalogue=catalogue.name, tool=tool.name)
    return (time.process_time() - started) / 20_000


def make_access(tools: int, callers: int, random: Random) -> tuple[Access, PolicySet]:
    catalogues = max(1, tools // 500)
    declared = {
        name: DeclaredTool(
            name,
            "Does it.",
            EffectiveTrust(TIERS[number % 2], frozenset(), False, True),
            "http",
            HERE,
            owner=f"team-{number % 40}",
        )
        for number in range(tools)
        if (name := f"svc{number % catalogues}_tool_{number}")
    }
    roles = frozenset(f"role:r{number}" for number in range(ROLES))
    snapshot = Snapshot(
        "large",
        {},
        flags={},
        tiers={tier.name: tier for tier in TIERS},
        artifacts={},
        collision_policies={},
        gates={},
        pipelines={},
        tools=declared,
        catalogues={
            f"cat{number}": Catalogue(
                f"cat{number}",
                roles,
                {name: name for name in declared if name.startswith(f"svc{number}_")},
                "standard",
                f"/cat{number}",
                HERE,
            )
            for number in range(catalogues)
        },
    )
    permissions = tuple(_row(number, random, list(declared), catalogues) for number in range(2 * tools))
    links = [
        RoleLink(PolicyCell(f"user:u{number}", HERE), PolicyCell(f"role:r{role}", HERE))
        for number in range(callers)
        for role in random.sample(range(ROLES), 2)
    ]
    policies = PolicySet(permissions, tuple(links))
    return Access(snapshot, build_authoriser(policies, ranks=snapshot.ranks)), policies


def _row(number: int, random: Random, tools: Sequence[str], catalogues: int) -> PermissionRow:
    catalogue = random.randrange(catalogues)
    object = f"tool:{random.choice(tools)}" if number % 2 else f"tool:svc{catalogue}_tool_{random.randrange(100)}*"
    texts = (
        f"role:r{random.randrange(ROLES)}",
        random.choice(["*", f"cat{catalogue}"]),
        object,
        random.choice(["invoke", "discover", "invoke|read", "approve"]),
        random.choice(["internal", "partner"]),
        random.choice(["allow"] * 9 + ["deny"]),
    )
    return PermissionRow(
        *(PolicyCell(text, Position("policy.csv", number + 1, at)) for at, text in enumerate(texts, 1))
    )


def make_usage(access: Access, callers: int, random: Random) -> UsageTable:
    catalogues = list(access.snapshot.catalogues.values())
    uses = []
    for number in range(callers):
        for _ in range(20):
            catalogue = random.choice(catalogues)
            principal, last = Principal(f"user:u{number}"), NOW - timedelta(days=random.randrange(60))
            uses.append(UseCount("call", principal, catalogue.name, random.choice(list(catalogue.tools)), 50, last))
    return UsageTable(uses, NOW - timedelta(days=30), NOW - timedelta(days=60))


if __name__ == "__main__":
    main()
