"""Arguments that contain themselves: every function that walks them raises `TypeError` at once."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from gateway.approvals.approval_store import make_action
from gateway.engine.turn_pipeline.tool_execution import decode_call
from gateway.errors import InvalidInitialToolCallValue
from gateway.model.caller import Principal
from gateway.model.primitives.canonical_json import (
    call_id,
    canonical,
    canonical_unchecked,
    refuse_cycles,
    to_pretty_json,
)
from gateway.model.primitives.json_fingerprint import call_identity, exact_digest, exact_json, fingerprint_of
from gateway.model.schema.schema import Schema
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_call import ToolCall
from gateway.model.turns.events import now

pytestmark = pytest.mark.anyio

ITEMS: dict[str, Any] = {"type": "array", "items": {"$ref": "#/properties/b"}}
RECURSIVE: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"$ref": "#"}, "b": ITEMS, "c": {"type": "object", "additionalProperties": True}},
    "additionalProperties": True,
}
OPEN: dict[str, Any] = {"type": "object", "additionalProperties": True}
WALKERS: dict[str, Callable[[Any], object]] = {
    "canonical": canonical,
    "canonical_object_of_texts": canonical_unchecked,
    "call_id": lambda value: call_id("t", value),
    "pretty": to_pretty_json,
    "exact_json": exact_json,
    "exact_digest": exact_digest,
    "fingerprint_of": lambda value: fingerprint_of("t", value),
    "call_identity": lambda value: call_identity("t", value),
    "decode_call": lambda value: decode_call("t", value),
    "refuse_cycles": refuse_cycles,
    "coerce": Schema(RECURSIVE).coerce,
    "is_valid": Schema(OPEN).is_valid,
    "make_action": lambda value: make_action(
        Principal("user:ana"), catalogue="c", tool="t", definition="d", revision="r", arguments=value
    ),
}


class Silence:
    turn_id = dispatch_id = "x"

    def emit(self, event: object) -> None:
        raise AssertionError("nothing is told of a call that cannot be hashed")


def cyclic(seed: int) -> dict[str, Any]:
    """Nested containers in which some contain their own ancestors, often more than once."""
    chance = random.Random(seed)
    root: dict[str, Any] = {}
    containers: list[Any] = [root]
    for number in range(chance.randrange(1, 30)):
        made: Any = chance.choice([dict, list])()
        for _ in range(chance.randrange(1, 3)):
            put(chance.choice(containers), made, number)
        containers.append(made)
    scalars = [None, True, 1, 1.0, 2**60, -0.0, "x", "\U0001f600"]
    for each in containers:
        put(each, chance.choice(scalars), "s")
    for number in range(chance.randrange(1, 4)):
        put(chance.choice(containers), root, f"back{number}")
    return root


def put(container: Any, value: Any, name: object) -> None:
    if isinstance(container, list):
        container.append(value)
    else:
        container[f"{'abc'[len(container) % 3]}{name}" if container else "b"] = value


@pytest.mark.parametrize("walk", WALKERS.values(), ids=WALKERS)
def test_value_that_contains_itself_is_a_type_error(walk: Callable[[Any], object]) -> None:
    for seed in range(200):
        with pytest.raises(TypeError, match="JSON has no cycles"):
            walk(cyclic(seed))


@pytest.mark.parametrize("document", [OPEN, RECURSIVE], ids=["open", "recursive"])
@pytest.mark.parametrize("checks", [(), (lambda value: None,)], ids=["plain", "checked"])
async def test_tool_runs_nothing_for_such_arguments(document: dict[str, Any], checks: Any) -> None:
    ran: list[object] = []
    tool = Tool(
        name="t",
        description="Tests.",
        input_schema=Schema(document, checks=checks),
        handler=lambda *given: ran.append(given),
    )
    for seed in range(100):
        with pytest.raises(TypeError, match="JSON has no cycles"):
            await tool.executor(Silence())(cyclic(seed))
        with pytest.raises(TypeError, match="JSON has no cycles"):
            await tool.validate(cyclic(seed))

    assert ran == []


def test_record_of_such_arguments_cannot_be_made() -> None:
    moment = now()
    for seed in range(100):
        with pytest.raises(InvalidInitialToolCallValue, match="JSON has no cycles"):
            ToolCall(
                id="c",
                tool="t",
                args=cyclic(seed),
                is_complete=True,
                is_error=True,
                results=Tokenizable("x"),
                created_at=moment,
                updated_at=moment,
                completed_at=moment,
            )


def test_value_that_is_shared_is_no_cycle_and_is_looked_at_once() -> None:
    value: Any = {"x": 1}
    for _ in range(400):
        value = {"a": value, "b": [value, (value,)]}

    refuse_cycles(value)


def test_deep_value_is_no_cycle() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]

    refuse_cycles(value)
