"""Every string of a corpus of real injection attempts, as body, as tool name and as file name."""

import json
import re
from datetime import UTC, datetime

import pytest

from gateway.engine.turn_pipeline.dispatch_loop import in_memory_callbacks
from gateway.model.envelopes.trust_envelope import compute_nonce, unescape_tags
from gateway.model.llm_prompt import Renderer
from gateway.model.media import InMemoryMediaReader, Media
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.tool_call import UNNAMED_TOOL, ToolCall
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.model.turns.context import TurnContext
from gateway.model.turns.events import EventBuses
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

CORPUS = ROOT.parent / "shared" / "data" / "envelope_corpus.jsonl"
OPENER = re.compile(
    r'<untrusted_content_([0-9a-f]{32}) nonce="\1" kind="tool-result" tool="([^"<>]*)" call="[0-9a-f]{64}">\n'
)
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def corpus() -> list[str]:
    if not CORPUS.exists():
        pytest.skip(f"the corpus of injection attempts is not here: {CORPUS.name}")
    return [json.loads(line)["text"] for line in CORPUS.read_text(encoding="utf-8").splitlines()]


def unescaped(attribute: str) -> str:
    """`html.unescape` drops references to control characters; here they must survive."""
    numbers = re.sub(r"&#(\d+);", lambda found: chr(int(found[1])), attribute)
    for entity, char in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        numbers = numbers.replace(entity, char)
    return numbers


def call(tool: str, results: Tokenizable | Media) -> ToolCall:
    return ToolCall(
        id="call_1",
        tool=tool,
        args={},
        is_complete=True,
        is_error=False,
        results=results,
        created_at=MOMENT,
        updated_at=MOMENT,
        completed_at=MOMENT,
    )


async def render(record: ToolCall) -> tuple[str, str]:
    ctx = TurnContext({"system_prompt": "p"}, tools=ToolRegistry(), callbacks=in_memory_callbacks(), buses=EventBuses())
    *_, block = await Renderer(unsupported_media="synthetic-description").tool_result(ctx, record)
    return block["text"], compute_nonce(ctx.turn_secret, record.checksum, record.id)


async def test_no_string_breaks_out_as_body_or_tool_name() -> None:
    broken = []
    for text in corpus():
        for record in (call("fetch", Tokenizable(text)), call(text or UNNAMED_TOOL, Tokenizable("body"))):
            rendered, nonce = await render(record)
            opener = OPENER.match(rendered)
            closer = f"\n</untrusted_content_{nonce}>"
            intact = (
                opener is not None
                and opener[1] == nonce
                and unescaped(opener[2]) == record.tool
                and rendered.endswith(closer)
                and len(re.findall(rf"</?untrusted_content_{nonce}", rendered)) == 2
                and unescape_tags(rendered[opener.end() : -len(closer)]) == str(record.results)
            )
            if not intact:
                broken.append(text)

    assert broken == []


async def test_no_string_breaks_out_as_file_name() -> None:
    broken = []
    for text in corpus():
        media = Media.retrieved_public(
            "video", mime_type="video/mp4", filename=text or "empty", reader=InMemoryMediaReader(b"")
        )
        rendered, _ = await render(call("fetch", media))
        if len(rendered.splitlines()) != 1 or re.search(r"[<>\x00-\x1f\x7f-\x9f]", rendered) or len(rendered) > 300:
            broken.append(text)

    assert broken == []
