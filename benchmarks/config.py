"""The cost of a growing configuration: checking it, deciding with it, keeping it in memory; each size in its own
process, all in one run.

A project of N tools has N / 20 catalogues and 10 N policy rows. "check" is everything `gateway check` does after Python
has started; "start" is Python and the imports. A fresh decision is one about a new pair of caller and tool. Absolute
figures depend on the machine; ratios to the smallest project are stable.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

SIZES = (10, 100, 1_000, 10_000)
TODAY = date(2026, 11, 16)
MODEL = Path(__file__).parent.parent / "policies" / "model.conf"

GATEWAY = """\
apiVersion: gateway/v1
kind: Gateway
metadata: {name: large, owner: team}
spec: {defaults: {pipeline: standard, collisionPolicy: careful, tier: internal}, identity: [local], storage: main}
---
apiVersion: gateway/v1
kind: IdentityProvider
metadata: {name: local, owner: team}
spec: {type: none, subject: "user:you", roles: [role:r0]}
---
apiVersion: gateway/v1
kind: Storage
metadata: {name: main, owner: team}
spec: {type: sqlite, path: data/gateway.db}
---
apiVersion: gateway/v1
kind: CollisionPolicy
metadata: {name: careful, owner: team}
spec: {onCollision: throw}
---
apiVersion: gateway/v1
kind: Pipeline
metadata: {name: standard, owner: team}
spec: {call: [{use: gates}, {use: timeout, with: {after: 30s}}]}
---
apiVersion: gateway/v1
kind: TrustFlag
metadata: {name: writes}
spec: {description: Changes state., hint: {readOnly: false}}
---
apiVersion: gateway/v1
kind: TrustTier
metadata: {name: internal}
spec: {rank: 0, description: Ours., origin: first-party}
"""
TOOL = """\
apiVersion: gateway/v1
kind: Tool
metadata: {{name: svc{group}_tool_{number}, owner: team-{group}, labels: {{system: s{group}}}}}
spec:
  version: 1.0.0
  description: Does the thing number {number} of service {group}.
  trust: {{tier: internal, flags: [{flags}]}}
  input:
    schema:
      type: object
      required: [id]
      properties:
        id: {{type: string, maxLength: 64}}
        limit: {{type: integer, minimum: 1, maximum: 500, default: 20}}
  backend: {{type: http, method: POST, url: "http://127.0.0.1:9000/{number}", body: {{from: arguments}}}}
"""
CATALOGUE = """\
apiVersion: gateway/v1
kind: Catalogue
metadata: {{name: cat{group}, owner: team-{group}}}
spec:
  audience: [role:r{group}]
  include: [{{tools: ["svc{group}_*"]}}, {{labels: {{system: s{group}}}}}]
  publish: {{path: /cat{group}}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of tools")
    parser.add_argument("--measure", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(Path(options.measure))))
        return
    print(f"Python {platform.python_version()}\n")
    seconds, decisions = f"{'start s':>8} {'check s':>8} {'per tool':>9}", f"{'warm µs':>8} {'fresh µs':>9}"
    print(f"{'tools':>6} {'rows':>7} {seconds} {decisions} {'MB':>6}")
    first: dict[str, float] = {}
    for size in options.sizes:
        figures = in_own_process(size)
        first = first or figures
        show(size, figures)
    print("\nper tool: milliseconds of check for each tool; fresh grows by", end=" ")
    print(f"{figures['fresh'] / first['fresh']:.1f} from {options.sizes[0]} to {options.sizes[-1]} tools")


def in_own_process(size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        write_project(Path(folder), size)
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import gateway.app.project"], check=True)
        start = time.perf_counter() - started
        command = [sys.executable, __file__, "--measure", folder]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        return {"start": start, **json.loads(answer.stdout)}


def measure(folder: Path) -> dict[str, float]:
    from gateway.app.project import ProjectFolders, load_project
    from gateway.model.caller import Principal

    started = time.perf_counter()
    found = load_project(ProjectFolders.from_folder(folder), environ={}, today=TODAY)
    check = time.perf_counter() - started
    if found.access is None:
        raise SystemExit(f"{folder} has problems: {found.diagnostics[:3]}")
    access, memory = found.access, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    catalogues = list(access.snapshot.catalogues.values())
    pairs = [(each.name, access.snapshot.tools[tool]) for each in catalogues for tool in each.tools.values()]
    asked = pairs[:500] * (1 + 500 // len(pairs))
    callers = [Principal(f"user:u{number}", frozenset({f"role:r{number % len(catalogues)}"})) for number in range(500)]
    started = time.perf_counter()
    for caller, (catalogue, tool) in zip(callers, asked, strict=False):
        access.decide_action(caller, "invoke", catalogue=catalogue, tool=tool)
    fresh = (time.perf_counter() - started) / 500
    return {"check": check, "fresh": fresh * 1e6, "warm": warm_decision(access, callers[0], pairs[0]), "memory": memory}


def warm_decision(access: object, caller: object, pair: tuple[str, object]) -> float:
    """Return the time of the authoriser alone, called as by the handlers."""
    from gateway.model.caller import Principal
    from gateway.policy.access import Access
    from gateway.policy.authoriser import AccessRequest
    from gateway.registries.snapshot import DeclaredTool

    assert isinstance(access, Access)
    assert isinstance(caller, Principal)
    assert isinstance(pair[1], DeclaredTool)
    request = AccessRequest(caller.names, pair[0], pair[1].object, "invoke", pair[1].trust.tier.name)
    decide = access.authoriser.decide
    decide(request)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(20_000):
            decide(request)
        best = min(best, time.perf_counter() - started)
    return best / 20_000 * 1e6


def show(size: int, figures: dict[str, float]) -> None:
    per_tool = figures["check"] / size * 1e3
    print(
        f"{size:6} {10 * size:7} {figures['start']:8.2f} {figures['check']:8.2f} {per_tool:9.2f}"
        f" {figures['warm']:8.2f} {figures['fresh']:9.1f} {figures['memory']:6.0f}",
        flush=True,
    )


def write_project(folder: Path, size: int) -> None:
    groups = max(1, size // 20)
    configs, policies = folder / "configs", folder / "policies"
    (configs / "tools").mkdir(parents=True)
    policies.mkdir()
    (configs / "gateway.yaml").write_text(GATEWAY, encoding="utf-8")
    for group in range(groups):
        tools = [
            TOOL.format(group=group, number=number, flags="writes" if number % 3 else "")
            for number in range(group, size, groups)
        ]
        (configs / "tools" / f"s{group}.yaml").write_text("---\n".join(tools), encoding="utf-8")
    catalogues = [CATALOGUE.format(group=group) for group in range(groups)]
    (configs / "catalogues.yaml").write_text("---\n".join(catalogues), encoding="utf-8")
    (policies / "model.conf").write_text(MODEL.read_text(encoding="utf-8"), encoding="utf-8")
    (policies / "policy.csv").write_text("".join(rows(size, groups)), encoding="utf-8")
    links = [f"g, user:m{number}, role:r{number % groups}\n" for number in range(size)]
    (policies / "roles.csv").write_text("".join(links), encoding="utf-8")


def rows(size: int, groups: int) -> list[str]:
    found = []
    for number in range(10 * size):
        group, tool, turn = number % groups, number % size, number // size
        action, effect = ("invoke", "discover", "approve")[turn % 3], "allow" if number % 97 else "deny"
        object = f"tool:svc{tool % groups}_tool_{tool}"
        found.append(f"p, role:r{(group + turn) % groups}, cat{group}, {object}, {action}, internal, {effect}\n")
    return found


if __name__ == "__main__":
    main()
