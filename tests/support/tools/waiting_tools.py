"""Tools whose handlers wait for a gate before they do anything."""

from typing import Any

from gateway.model.schema.schema import Schema

AMOUNT = {"type": "object", "properties": {"amount": {"type": "integer", "maximum": 100}}, "required": ["amount"]}


async def refund(args: dict[str, Any], ctx: Any, meta: Any) -> str:
    """Ask how much may be refunded; `patience` is in milliseconds."""
    gate = {"id": "refund", "reason": "money leaves", "payload": {"order": args["text"]}, "schema": Schema(AMOUNT)}
    answer = await ctx.wait_for({**gate, **({"timeout": args["patience"]} if "patience" in args else {})})
    return f"refunded {answer['amount']}"


async def announce(args: dict[str, Any], ctx: Any, meta: Any) -> str:
    """Open a gate without a schema, which takes any answer."""
    answer = await ctx.wait_for({"id": "announce", "reason": "everybody reads it", "payload": {}, "timeout": 60_000})
    return f"announced {answer!r}"


async def odd(args: dict[str, Any], ctx: Any, meta: Any) -> str:
    """Open a gate whose payload cannot be serialised."""
    await ctx.wait_for({"id": "odd", "reason": "odd", "payload": {"it": object()}, "timeout": 50})
    return "done"


def _even(value: Any) -> Any:
    if value != {"number": 2}:
        raise ValueError("an even number")
    return 2


async def choosy(args: dict[str, Any], ctx: Any, meta: Any) -> str:
    """Open a gate whose schema is a function, which other processes cannot call."""
    answer = await ctx.wait_for({"id": "choosy", "reason": "odd", "payload": {}, "schema": _even, "timeout": 60_000})
    return f"took {answer}"
