"""The cost of the core's operations: microseconds each, and as a multiple of one reference operation.

The reference is the standard library's `json.dumps` of the same 300-byte argument object in the same run: absolute
figures depend on the machine; ratios are stable.
"""

import argparse
import asyncio
import json
import platform
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from gateway.artifacts.spool_stores import InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.turn_pipeline.dispatch_loop import in_memory_callbacks
from gateway.model.llm_prompt import Renderer
from gateway.model.primitives.canonical_json import call_id
from gateway.model.schema.schema import Schema
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_call import ToolCall
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.model.turns.context import DispatchContext, TurnContext
from gateway.model.turns.events import EventBuses

ARGS = {
    "query": "quarterly revenue by region",
    "limit": 25,
    "filters": {"region": ["emea", "apac"], "year": 2026, "active": True},
    "sort": "desc",
    "cursor": None,
    "fields": ["id", "name", "amount", "currency", "updatedAt"],
    "note": "please include the totals and the currency for each of the rows listed",
    "page": 3,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "default": 10},
        "filters": {"type": "object", "additionalProperties": True},
        "sort": {"enum": ["asc", "desc"]},
        "cursor": {"type": ["string", "null"]},
        "fields": {"type": "array", "items": {"type": "string"}},
        "note": {"type": "string"},
        "page": {"type": "integer"},
    },
    "required": ["query"],
}
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.3, help="how long to measure each operation, per repeat")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.seconds))
    if options.json:
        print(json.dumps({"python": platform.python_version(), "microseconds": figures}, indent=2))
        return
    reference = figures["json.dumps (reference)"]
    print(f"Python {platform.python_version()}, best of {REPEATS}\n")
    print(f"{'operation':34} {'µs':>10} {'× reference':>12}")
    for name, microseconds in figures.items():
        print(f"{name:34} {microseconds:10.2f} {microseconds / reference:12.2f}")


async def measure(seconds: float) -> dict[str, float]:
    schema = Schema(SCHEMA)
    ctx = dispatch_context()
    empty = Tool(name="empty", description="d", input_schema=Schema({"type": "object"}), handler=nothing)
    halves = [ToolRegistry(named(range(500))), ToolRegistry(named(range(500, 1000)))]
    await store_artifacts(ctx, 100)
    record = ctx.turn_tool_calls[0]
    renderer = Renderer()

    async def validate() -> None:
        await schema.validate(ARGS)

    async def execute() -> None:
        await empty.executor(ctx)({})

    async def render() -> None:
        await renderer.tool_result(ctx, record)

    return {
        "json.dumps (reference)": best(lambda: json.dumps(ARGS), seconds),
        "call id of 300 bytes": best(lambda: call_id("search", ARGS), seconds),
        "validate 300 bytes": await best_async(validate, seconds),
        "execute an empty tool": await best_async(execute, seconds),
        "merge 1,000 tools": best(lambda: ToolRegistry.merge(halves), seconds),
        "forge for 100 artifacts": best(lambda: SpooledArtifact.forge_tools(ctx), seconds),
        "render an envelope": await best_async(render, seconds),
    }


def best(operation: Callable[[], object], seconds: float) -> float:
    rounds = calibrate(operation, seconds)
    return min(time_rounds(operation, rounds) for _ in range(REPEATS)) / rounds * 1e6


async def best_async(operation: Callable[[], Awaitable[None]], seconds: float) -> float:
    async def once(rounds: int) -> float:
        start = time.perf_counter()
        for _ in range(rounds):
            await operation()
        return time.perf_counter() - start

    rounds = max(1, int(seconds / max(await once(10) / 10, 1e-9)))
    return min([await once(rounds) for _ in range(REPEATS)]) / rounds * 1e6


def calibrate(operation: Callable[[], object], seconds: float) -> int:
    return max(1, int(seconds / max(time_rounds(operation, 10) / 10, 1e-9)))


def time_rounds(operation: Callable[[], object], rounds: int) -> float:
    start = time.perf_counter()
    for _ in range(rounds):
        operation()
    return time.perf_counter() - start


def nothing(args: object, ctx: object, meta: object) -> str:
    return ""


def named(numbers: range) -> list[Tool]:
    schema = Schema({"type": "object"})
    return [Tool(name=f"tool_{n}", description="d", input_schema=schema, handler=nothing) for n in numbers]


def dispatch_context() -> DispatchContext:
    turn = TurnContext(
        {"system_prompt": "p"}, tools=ToolRegistry(), callbacks=in_memory_callbacks(), buses=EventBuses()
    )
    return DispatchContext(turn, buses=EventBuses())


async def store_artifacts(ctx: DispatchContext, count: int) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    artifact = SpooledArtifact(InMemoryReader("line\n" * 200))
    for n in range(count):
        await ctx.store_tool_call(
            ToolCall(
                id=f"call_{n}",
                tool="search",
                args={"n": n},
                is_complete=True,
                is_error=False,
                results=artifact,
                created_at=moment,
                updated_at=moment,
                completed_at=moment,
            )
        )


if __name__ == "__main__":
    main()
