"""The cost of a replay: a store of recorded calls, decided again by the shipped project.

The calls are those of the project's policy tests, with other callers' names and arguments as they come, spread over a
week. The command runs as users run it, in a process of its own; its peak memory is that of this process.
"""

import argparse
import json
import os
import platform
import random
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway.app.project import ProjectFolders, load_project
from gateway.model.primitives.canonical_json import call_id, canonical
from gateway.policy.access import Access
from gateway.policy.access_answer import AccessQuestion
from gateway.registries.policy_cases import PolicyCase
from gateway.storage.sql.sqlite.database_setup import open_database_file

ROOT = Path(__file__).parents[1]
GATEWAY = Path(sys.executable).with_name("gateway")
WEEK = 7 * 24 * 3600 * 10**6
BATCH = 5_000
CALLS_OF_A_TURN = 20
REASONS = {
    "audience": "not-in-audience",
    "tool": "unknown-tool",
    "policy": "not-permitted",
    "arguments": "arguments-invalid",
}
COLUMNS = (
    *("turn_id", "id", "owner", "tenant", "subject", "roles", "tool", "identity", "args", "checksum", "catalogue"),
    *("revision", "created_at", "status", "decision", "because", "is_error", "inline", "trusted"),
    *("from_artifact_tool", "results", "completed_at", "process", "reason"),
)
TURN = (
    *("id", "owner", "tenant", "subject", "roles", "catalogue", "revision", "secret", "created_at", "expires_at"),
    "stash",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000, help="how many calls are on record")
    parser.add_argument("--callers", type=int, default=500, help="how many callers made them")
    parser.add_argument("--folder", type=Path, help="where to write; the folder of temporary files if not given")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    with TemporaryDirectory(dir=options.folder) as folder:
        database = Path(folder) / "gateway.db"
        write_calls(database, calls=options.calls, callers=options.callers)
        found = measure_replay(database)
    if options.json:
        print(json.dumps({"machine": platform.machine(), "python": platform.python_version(), **found}, indent=2))
        return
    for name, value in found.items():
        print(f"{name:<28}{value:>16}")


def measure_replay(database: Path) -> dict[str, Any]:
    environ = {**os.environ, "REPOS_DIR": str(ROOT), "HELPDESK_TOKEN": "x"}
    began = time.perf_counter()
    command: list[Any] = [GATEWAY, "replay", ROOT, "--from", database, "--since", "8d", "--output", "json"]
    run = subprocess.run(command, capture_output=True, env=environ, text=True, check=False)
    took = time.perf_counter() - began
    if run.returncode not in (0, 2):
        raise SystemExit(run.stderr)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = json.loads(run.stdout)
    return {
        "calls": result["calls"],
        "seconds": round(took, 1),
        "CPU seconds": round(used.ru_utime + used.ru_stime, 1),
        "µs per call": round(took / result["calls"] * 1e6, 1),
        "peak memory, MB": round(used.ru_maxrss / 1024),
        "database, MB": round(database.stat().st_size / 2**20),
        "the same": result["same"],
        "differing": result["differing"],
        "not replayable": result["notReplayable"],
    }


def write_calls(database: Path, *, calls: int, callers: int) -> None:
    """Write a store with calls of the shipped project's policy tests."""
    open_database_file(database).release()
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA synchronous = OFF")
    into = f"INSERT INTO calls ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
    turns = f"INSERT OR IGNORE INTO turns ({', '.join(TURN)}) VALUES ({', '.join('?' * len(TURN))})"
    rows: list[tuple[Any, ...]] = []
    for row in make_rows(calls, callers):
        rows.append(row)
        if len(rows) == BATCH:
            write_rows(connection, into, turns, rows)
            rows.clear()
    write_rows(connection, into, turns, rows)
    connection.close()


def write_rows(connection: sqlite3.Connection, into: str, turns: str, rows: list[tuple[Any, ...]]) -> None:
    with connection:
        opened = [(row[0], *row[2:6], row[10], "r", b"s" * 32, row[12], row[12] + 60 * WEEK, "{}") for row in rows]
        connection.executemany(turns, opened)
        connection.executemany(into, rows)


def make_rows(calls: int, callers: int) -> Iterator[tuple[Any, ...]]:
    chance = random.Random(1)
    known = load_cases()
    now = time.time_ns() // 1000
    for number in range(calls):
        case, roles, decision, because, reason = known[number // CALLS_OF_A_TURN % len(known)]
        at = now - WEEK + number * WEEK // calls
        subject = f"{case.principal.subject}-{number // CALLS_OF_A_TURN % callers}"
        owner = canonical([case.principal.tenant, subject])
        arguments = json.dumps(case.args, default=dict)
        checksum = call_id(case.tool or "", json.loads(arguments))
        took = chance.randrange(1_000, 80_000)
        results = canonical([{"kind": "text", "text": "x" * 60, "byteLength": 60}])
        yield (
            *(f"turn_{number // CALLS_OF_A_TURN}", f"{number:032x}", owner, case.principal.tenant, subject, roles),
            *(
                case.tool,
                case.tool,
                arguments,
                checksum,
                case.catalogue,
                "r",
                at,
            ),
            *("settled", decision, because, decision != "allow", True, False, False, results, at + took),
            *("p", reason),
        )


def load_cases() -> list[tuple[PolicyCase, str, str, str, str]]:
    """Return the calls of the policy tests with their callers' roles, and what the project decides about each."""
    environ = {**os.environ, "REPOS_DIR": str(ROOT), "HELPDESK_TOKEN": "x"}
    today = datetime.now(UTC).date()
    access = load_project(ProjectFolders.from_folder(ROOT), environ=environ, today=today).access
    if access is None:
        raise SystemExit("the shipped project has errors")
    return [
        (each, canonical(sorted(access.roles_of(each.principal) - {each.principal.subject})), *decide(access, each))
        for each in access.snapshot.cases
        if each.tool is not None and each.of is None
    ]


def decide(access: Access, case: PolicyCase) -> tuple[str, str, str]:
    """Return the decision, the words about it and its reason, as a gateway would record them."""
    question = AccessQuestion(case.principal, case.catalogue, case.tool or "", datetime.now(UTC), case.args)
    answer = access.decide_call(question)
    step = answer.steps[-1]
    if answer.decision == "allow" or answer.outcome is None or answer.outcome.decided_by is None:
        return answer.decision, step.reason, REASONS.get(step.name, "permitted")
    held = "approval-pending" if answer.decision == "hold" else "rule-denied"
    return answer.decision, answer.outcome.decided_by.rule.place, held


if __name__ == "__main__":
    main()
