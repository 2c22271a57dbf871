"""Hostile texts as results over MCP: the envelope closes exactly once, and its label stays unchanged."""

import asyncio
import re
from pathlib import Path

import orjson
import pytest

from tests.support.gateways.projects import (
    Person,
    base_documents,
    catalogue,
    http_tool,
    start_gateway,
    tokens_of,
    write_project,
)
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

CORPUS = ROOT.parent / "shared" / "data" / "envelope_corpus.jsonl"
ECHO = "tests.support.tools.echo_tools"
ANA = Person("ana", ("staff",))
TAG = re.compile(r"<\s*/?\s*(?:un)?trusted_content_", re.IGNORECASE)
OPENER = re.compile(r'<(untrusted_content_[0-9a-f]{32}) nonce="[0-9a-f]{32}"[^>\n]*>\n')


def corpus() -> list[str]:
    if not CORPUS.exists():
        pytest.skip("the corpus of hostile texts is not beside this checkout")
    with CORPUS.open("rb") as lines:
        return [orjson.loads(line)["text"] for line in lines]


async def test_no_text_of_the_corpus_closes_its_envelope_or_changes_its_label(tmp_path: Path) -> None:
    texts = [text for text in corpus() if text.strip()]
    backend = {"type": "python", "entrypoint": f"{ECHO}:echo", "run": "loop"}
    documents = [
        *base_documents(["tokens"]),
        tokens_of([ANA]),
        http_tool("fetch", 1, tier="community", backend=backend),
    ]
    documents.append(catalogue("desk", ["role:staff"], ["*"]))
    write_project(tmp_path / "p", documents, policy="p, role:staff, *, tool:*, invoke, community, allow\n")
    async with start_gateway(tmp_path / "p", tmp_path / "data", people=[ANA], python_packages=(ECHO,)) as gateway:
        caller = gateway.caller(ANA)
        wrong = []
        for start in range(0, len(texts), 64):  # concurrently, so that they share disk writes
            batch = texts[start : start + 64]
            replies = await asyncio.gather(*(caller.modern_call("desk", "fetch", {"text": text}) for text in batch))
            problems = [find_fault(reply.json.get("result", {})) for reply in replies]
            wrong += [found for found in zip(problems, batch, strict=True) if found[0]]

    assert wrong == []
    assert len(texts) > 3_000


def find_fault(result: dict[str, object]) -> str | None:
    blocks = result.get("content")
    if not isinstance(blocks, list) or len(blocks) != 1 or result.get("isError"):
        return "not one block"
    shown, meta = blocks[0]["text"], blocks[0]["_meta"]
    opener = OPENER.match(shown)
    if opener is None or not shown.endswith(f"\n</{opener[1]}>"):
        return "no envelope around it"
    if len(TAG.findall(shown)) != 2:
        return "another tag inside"
    if meta != {"tier": "community", "trusted": False, "hazard": "extractable-instructions"}:
        return "another label"
    return None
