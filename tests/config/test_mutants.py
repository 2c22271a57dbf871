"""Hundreds of broken projects: each gives diagnostics or serves, none ends in a traceback, none takes long.

`MUTANTS` sets how many, at least a hundred; run one failing seed with `MUTANT=<seed>`.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.config.mutant_runs import Workshop, resident_bytes
from tests.config.mutants import Mutant, mutant
from tests.support.gateways.commands import run_gateway
from tests.support.gateways.process import start_gateway_process

COUNT = int(os.environ.get("MUTANTS", "600"))
PARTS = min(20, COUNT // 100)
SECONDS = 10.0
MEMORY = 256 * 1024**2
"""The memory that a process may gain over a part."""


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def seeds(part: int) -> Iterator[int]:
    chosen = os.environ.get("MUTANT")
    yield from [int(chosen)] if chosen else range(part, COUNT, PARTS)


@pytest.mark.parametrize("part", range(PARTS))
def test_each_mutant_gives_diagnostics_or_serves(part: int, workshop: Workshop) -> None:
    kinds: Counter[str] = Counter()
    failures: list[str] = []
    before = resident_bytes()
    for seed in seeds(part):
        each = mutant(seed)
        outcome = workshop.run(each, serve=each.base == "starter")
        kinds[outcome.kind] += 1
        if outcome.kind == "failed" or outcome.seconds > SECONDS:
            failures.append(f"seed {seed} after {outcome.seconds:.1f} s: {each.notes}\n{outcome.failure}")

    assert not failures, f"{len(failures)} mutants failed\n" + "\n".join(failures[:5])
    assert resident_bytes() - before < MEMORY
    if "MUTANT" not in os.environ:
        assert kinds["diagnostics"] > kinds.total() // 3, kinds
        assert kinds["served"] + kinds["valid"] > 0, kinds


def test_mutants_are_the_same_on_every_run() -> None:
    assert [mutant(seed) for seed in range(50)] == [mutant(seed) for seed in range(50)]
    assert len({json.dumps(sorted(mutant(seed).notes)) for seed in range(300)}) > 250


def test_projects_without_a_mutation_serve(workshop: Workshop) -> None:
    for base in ("example", "starter"):
        outcome = workshop.run(Mutant(0, base, None, {}, ()), serve=True)
        assert outcome.kind == ("served" if base == "starter" else "valid"), outcome


@pytest.mark.parametrize("part", range(4))
def test_command_ends_with_a_code_and_without_a_traceback(part: int, workshop: Workshop) -> None:
    environ = {**os.environ, **workshop.environ()}
    for seed in range(900_000 + 4 * part, 900_004 + 4 * part):
        each = mutant(seed)
        with workshop.project(each) as root:
            options = [] if each.environment is None else ["--environment", each.environment]
            ended = run_gateway("check", str(root), "--output", "json", *options, env=environ, timeout=120)

        assert ended.returncode in (0, 1, 2), (seed, ended)
        assert "Traceback" not in ended.stdout + ended.stderr, (seed, each.notes, ended.stderr)
        report = json.loads(ended.stdout)
        assert any(found["severity"] == "error" for found in report) == (ended.returncode == 1), seed


def test_valid_mutants_start_and_list_their_tools(tmp_path: Path, workshop: Workshop) -> None:
    started = 0
    for seed in range(910_000, 910_400):
        each = mutant(seed)
        if each.base != "starter" or workshop.run(each, serve=True).kind != "served":
            continue
        with (
            workshop.project(each) as root,
            start_gateway_process(root, tmp_path / f"data-{seed}", env=workshop.environ()) as gateway,
        ):
            for catalogue in _catalogues(gateway.url):
                body = json.dumps(
                    {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": _META}}
                ).encode()
                request = Request(f"{gateway.url}{catalogue}/mcp", body, _HEADERS)
                with urlopen(request, timeout=30) as answer:
                    assert isinstance(json.loads(answer.read())["result"]["tools"], list)
                    started += 1
            assert gateway.stop() == 0
        if started >= 2:
            return
    raise AssertionError("too few mutants of the starter are valid")


_META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/list",
}


def _catalogues(url: str) -> list[str]:
    with urlopen(f"{url}/v1/catalogues", timeout=30) as answer:
        listed = json.loads(answer.read())
    return [f"/{each['name']}" for each in listed["catalogues"]]
