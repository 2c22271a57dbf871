"""InvoiceArtifact, queried through its forged tools, as a model would."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.errors import ArtifactError, InvalidToolArgs, ToolDownstreamError
from gateway.examples.artifacts import InvoiceArtifact
from gateway.examples.pricing import invoice
from gateway.model.tools.tool_call import ToolCall

pytestmark = pytest.mark.anyio

MOMENT = "2026-01-01T00:00:00Z"


@dataclass
class Turn:
    """The part of a context that forging and calling need."""

    turn_tool_calls: list[ToolCall] = field(default_factory=list)
    turn_id: str = "turn"
    dispatch_id: str = "dispatch"
    events: list[Any] = field(default_factory=list)

    def emit(self, event: Any) -> None:
        self.events.append(event)


def turn_with(artifact: SpooledArtifact) -> Turn:
    call = ToolCall(
        id="c1",
        tool="invoice_get",
        args={},
        is_complete=True,
        is_error=False,
        results=artifact,
        created_at=MOMENT,
        updated_at=MOMENT,
        completed_at=MOMENT,
    )
    return Turn([call])


async def ask(text: str, tool: str, **args: Any) -> str:
    turn = turn_with(InvoiceArtifact(InMemoryReader(text)))
    forged = InvoiceArtifact.forge_tools(turn).get(tool)
    assert forged is not None
    answer: str = await forged.executor(turn)({"callId": "c1", **args})
    return answer


async def test_total_is_the_sum_of_the_lines() -> None:
    assert await ask(invoice("2026-0101"), "artifact_invoice_total") == "1896.00 EUR"


async def test_total_does_not_trust_the_sum_in_the_document() -> None:
    text = json.dumps({"total": "1.00", "lines": [{"amount": "2.50"}, {"amount": 4}, {"amount": 0.5}]})

    assert await ask(text, "artifact_invoice_total") == "7.00"


async def test_lines_over_an_amount_are_returned_whole() -> None:
    answer = json.loads(await ask(invoice("2026-0103"), "artifact_invoice_lines_over", amount=79.8))

    assert [line["sku"] for line in answer] == ["CHAIR-02"]
    assert answer[0]["title"] == "Office chair with armrests"


async def test_no_line_over_an_amount_has_a_message() -> None:
    assert await ask(invoice("2026-0103"), "artifact_invoice_lines_over", amount=100_000) == "(empty list)"


async def test_invoice_still_answers_what_json_answers() -> None:
    assert await ask(invoice("2026-0103"), "artifact_json_get", path="$.customer.name") == "Miriam Falk"
    assert await ask(invoice("2026-0103"), "artifact_line_count") == str(invoice("2026-0103").count("\n") + 1)


async def test_plain_json_gets_no_invoice_tools() -> None:
    turn = turn_with(SpooledJsonArtifact(InMemoryReader("{}")))

    names = {tool.name for tool in InvoiceArtifact.forge_tools(turn).all()}

    assert "artifact_json_get" in names
    assert not {name for name in names if "invoice" in name}


@pytest.mark.parametrize("amount", [-1, "ten", None, True])
async def test_amount_that_is_none_is_refused(amount: Any) -> None:
    with pytest.raises(InvalidToolArgs):
        await ask(invoice("2026-0101"), "artifact_invoice_lines_over", amount=amount)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("[]", "not an invoice", id="a list"),
        pytest.param('{"lines": 3}', "not an invoice", id="lines that are no list"),
        pytest.param('{"lines": [{"amount": "1.00"}, {}]}', "line 2", id="no amount"),
        pytest.param('{"lines": ["1.00"]}', "line 1", id="no object"),
        pytest.param('{"lines": [{"amount": true}]}', "line 1", id="a boolean"),
        pytest.param('{"lines": [{"amount": "NaN"}]}', "line 1", id="not a number"),
        pytest.param('{"lines": [{"amount": "1E+99999999"}]}', "line 1", id="a number past all bounds"),
    ],
)
async def test_document_that_is_no_invoice_is_reported(text: str, expected: str) -> None:
    with pytest.raises(ToolDownstreamError) as caught:
        await ask(text, "artifact_invoice_total")

    cause = caught.value.cause
    assert isinstance(cause, ArtifactError)
    assert expected in cause.message
    assert cause.help is not None
