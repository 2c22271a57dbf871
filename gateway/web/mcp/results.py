"""The result of a call as JSON, in the words of each revision."""

import json
from typing import Any, Final

import orjson

from gateway.serving.content import ABSENT, Content
from gateway.serving.course import RAN_UNRECORDED, OutcomeLost
from gateway.serving.settled import Settled
from gateway.web.mcp.protocol import META_CALL, META_LIMITED, META_NOT_RECORDED, META_PENDING, META_TURN, MODERN

OLDEST: Final = "2025-03-26"


def call_result(content: Content, settled: Settled, version: str, meta: dict[str, Any]) -> bytes:
    """`meta` is what every result of the server says of itself."""
    blocks = content.blocks
    if version == OLDEST:
        blocks = [_block(each) for each in blocks if each["type"] != "resource_link"]
    if not settled.is_recorded:
        blocks = [*blocks, {"type": "text", "text": RAN_UNRECORDED["message"]}]
    result: dict[str, Any] = {"content": blocks}
    if content.structured is not ABSENT and _may_be_structured(content.structured, version):
        result["structuredContent"] = content.structured
    result["isError"] = content.is_error
    if version == MODERN:
        result["resultType"] = "complete"
    aside = content.aside
    if aside is not None and aside.fields:
        result = {**aside.fields, **result}
    foreign = {} if aside is None else aside.meta
    result["_meta"] = {**foreign, **meta, META_TURN: settled.turn.id, META_CALL: settled.record.id}
    if settled.pending is not None:
        result["_meta"][META_PENDING] = settled.pending
    if settled.limited is not None:
        result["_meta"][META_LIMITED] = settled.limited
    if not settled.is_recorded:
        result["_meta"][META_NOT_RECORDED] = RAN_UNRECORDED
    return dumped(result)


def lost_result(lost: OutcomeLost, version: str, meta: dict[str, Any]) -> bytes:
    """The result of a call whose tool may have run, and whose outcome cannot be told."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": f"{lost.message} ({lost.help})"}], "isError": True}
    if version == MODERN:
        result["resultType"] = "complete"
    told = {"code": lost.code, "message": lost.message}
    result["_meta"] = {**meta, META_TURN: lost.turn_id, META_CALL: lost.call_id, META_NOT_RECORDED: told}
    return dumped(result)


def dumped(value: Any) -> bytes:
    """JSON of whatever a tool may have come up with: huge integers, and text that is not Unicode."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(_encodable(value), ensure_ascii=False, allow_nan=False).encode()


def _block(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key != "_meta"}


def _may_be_structured(value: Any, version: str) -> bool:
    return version == MODERN or (version != OLDEST and isinstance(value, dict))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value
