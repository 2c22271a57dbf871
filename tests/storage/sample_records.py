"""Records for the tests of stores, each with only the fields that a test needs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.model.caller import Principal
from gateway.model.primitives.canonical_json import call_id
from gateway.model.primitives.deadline import to_microseconds
from gateway.storage.blobs.blob_store import hash_turn_id
from gateway.storage.call_store import StoredCall, StoredResult, StoredTurn

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
ADA = Principal("user:ada", roles=frozenset({"role:agent", "role:reader"}), tenant="acme")
BOB = Principal("user:bob", tenant="acme")
OTHER_ADA = Principal("user:ada", tenant="umbrella")


class Clock:
    """Shows the time that it is set to."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **duration: float) -> datetime:
        self.now += timedelta(**duration)
        return self.now


def turn(id: str = "turn", principal: Principal = ADA, **changes: Any) -> StoredTurn:
    made = StoredTurn(
        id=id,
        principal=principal,
        catalogue="support",
        revision="r1",
        secret=b"\x00secret\xff",
        created=to_microseconds(NOON),
        expires=to_microseconds(NOON + timedelta(hours=1)),
    )
    return replace(made, **_kept(changes))


def call(id: str = "call", turn_id: str = "turn", principal: Principal = ADA, **changes: Any) -> StoredCall:
    args = changes.pop("args", {"id": id})
    made = StoredCall(
        id=id,
        turn_id=turn_id,
        tool="ticket_create",
        identity="tickets/ticket_create",
        args=args,
        checksum=call_id("ticket_create", args),
        principal=principal,
        catalogue="support",
        revision="r1",
        created=to_microseconds(NOON),
    )
    return replace(made, **_kept(changes))


def settled(id: str = "call", turn_id: str = "turn", principal: Principal = ADA, **changes: Any) -> StoredCall:
    outcome = {"status": "settled", "decision": "allow", "completed_at": NOON + timedelta(seconds=1), **changes}
    return call(id, turn_id, principal, **outcome)


def turn_id(number: int) -> str:
    """An id with a timestamp, like ours."""
    return f"turn_{number:012x}more"


def piece_key(kind: str, number: int) -> str:
    """The key of a piece of that turn."""
    return f"{kind}.{'0' * 32}.{hash_turn_id(turn_id(number))}.{'2' * 32}.{number:032x}"


def small(number: int) -> StoredResult:
    return StoredResult("artifact", key=piece_key("s", number), type="json", byte_length=3, content=b"abc")


def _kept(changes: dict[str, Any]) -> dict[str, Any]:
    """Convert moments (`created_at` and the like) to the form that records have."""
    return {
        name.removesuffix("_at"): to_microseconds(value) if isinstance(value, datetime) else value
        for name, value in changes.items()
    }


def spooled(key: str) -> StoredResult:
    return StoredResult("artifact", key=key, type="text", byte_length=3)
