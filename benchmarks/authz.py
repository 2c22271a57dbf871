"""The cost of a decision: warm (cached), fresh, and by stock Casbin over all rows, in one run.

Fresh decisions are each about another object. "spread" shares the rows among roles, in "one role" a single role has
them all, and "all match" is the worst case: every row matches every request (stock Casbin stops at the first deny
there). Absolute figures depend on the machine; ratios are stable.
"""

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import casbin

from gateway.policy.authoriser import AccessRequest
from gateway.policy.casbin.enforcer import CasbinAuthoriser
from gateway.policy.casbin.policy_files import MODEL_TEXT, PermissionRow, PolicyCell, PolicySet
from gateway.policy.casbin.policy_index import (
    has_role,
    is_within_tier,
    matches_action,
    matches_catalogue,
    matches_object,
)
from gateway.registries.diagnostics import Position

RANKS = {"internal": 0, "partner": 1, "quarantine": 2}
REPEATS = 5
STOCK_LIMIT = 1_000
PATTERNS = ("tool:t{}_run", "tool:t{}_*", "class:c{}", "tool:t{}_list")


@dataclass(frozen=True)
class Figures:
    shape: str
    rows: int
    build: float
    warm: float
    fresh: float
    stock: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=500, help="how many fresh decisions to time, per repeat")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, best of {REPEATS}; microseconds, building in milliseconds\n")
    ratios = f"{'stock/fresh':>12} {'stock/warm':>11}"
    print(f"{'shape':9} {'rows':>6} {'build ms':>9} {'warm':>7} {'fresh':>8} {'stock':>9} {ratios}")
    for shape in ("spread", "one role", "all match"):
        for rows in (10, 100, 1_000, 10_000):
            show(measure(shape, rows, decisions=options.decisions))


def show(figures: Figures) -> None:
    line = f"{figures.shape:9} {figures.rows:6} {figures.build:9.1f} {figures.warm:7.2f} {figures.fresh:8.1f}"
    if figures.stock is not None:
        line += f" {figures.stock:9.1f} {figures.stock / figures.fresh:12.1f} {figures.stock / figures.warm:11.0f}"
    print(line)


def measure(shape: str, count: int, *, decisions: int) -> Figures:
    policies = PolicySet(tuple(row(number, shape=shape, count=count) for number in range(count)))
    started = time.perf_counter()
    authoriser = CasbinAuthoriser(policies, ranks=RANKS, cache_size=2)
    build = time.perf_counter() - started
    asked = [request(number % count, shape=shape, count=count) for number in range(decisions)]
    questions = cycle(asked)
    warm = request(0, shape=shape, count=count)
    authoriser.decide(request(0, shape=shape, count=count))
    timed_warm = microseconds(lambda: authoriser.decide(warm), times=100_000)
    timed_fresh = microseconds(lambda: authoriser.decide(next(questions)), times=decisions)
    stock = None
    if count <= STOCK_LIMIT:
        enforcer = stock_enforcer(policies)
        everything = cycle([(one.names, one.catalogue, one.object, one.action, one.tier) for one in asked])
        stock = microseconds(lambda: enforcer.enforce(*next(everything)), times=max(5, 2_000 // count))
    return Figures(shape, count, build * 1e3, timed_warm, timed_fresh, stock)


def microseconds(operation: Callable[[], object], *, times: int) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        for _ in range(times):
            operation()
        best = min(best, time.perf_counter() - started)
    return best / times * 1e6


def row(number: int, *, shape: str, count: int) -> PermissionRow:
    texts = [
        role(number, shape=shape, count=count),
        "*" if number % 2 else "engineering",
        "tool:*" if shape == "all match" else PATTERNS[number % len(PATTERNS)].format(number),
        "invoke|discover",
        "partner",
        "deny" if number % 10 == 9 else "allow",
    ]
    return PermissionRow(
        *(PolicyCell(text, Position("policy.csv", number + 1, column)) for column, text in enumerate(texts, 1))
    )


def role(number: int, *, shape: str, count: int) -> str:
    return f"role:r{number % max(1, count // 10)}" if shape == "spread" else "role:r0"


def request(number: int, *, shape: str, count: int) -> AccessRequest:
    caller = frozenset({f"user:u{number}", role(number, shape=shape, count=count), "role:r1", "role:r2"})
    return AccessRequest(caller, "engineering", f"tool:t{number}_run", "invoke", "internal")


def stock_enforcer(policies: PolicySet) -> Any:
    model = casbin.Model()
    model.load_model_from_text(MODEL_TEXT)
    enforcer = casbin.Enforcer(model)
    for function in (has_role, matches_catalogue, matches_action):
        enforcer.add_function(function.__name__, function)
    enforcer.add_function("covers", partial(matches_object, groups={}))
    enforcer.add_function("within", partial(is_within_tier, ranks=RANKS))
    enforcer.add_policies([row.texts for row in policies.permissions])
    return enforcer


if __name__ == "__main__":
    main()
