"""Idempotency keys: a call that is sent again runs once, and is answered with what became of it."""

from datetime import timedelta
from typing import Final

from gateway.core.events import now
from gateway.errors import IdempotencyConflict
from gateway.governance.records import Store, StoredCall
from gateway.serving.current import ServedCall
from gateway.serving.keeping import started
from gateway.serving.turns import Turn

KEY_LIFE: Final = timedelta(days=1)
RUNNING: Final = "E_IDEMPOTENCY_RUNNING"


async def claimed(store: Store, turn: Turn, call: ServedCall) -> StoredCall | None:
    """`None` if the call may run; the settled call if it ran before."""
    claiming = started(call, turn.id)
    assert call.idempotency_key is not None  # noqa: S101 - only calls with a key are claimed
    claim = await store.claim(
        call.idempotency_key,
        turn.principal,
        digest=f"{call.catalogue}:{claiming.checksum}",
        call=claiming,
        until=now() + KEY_LIFE,
        turn=None if turn.is_stored else turn.stored,
    )
    if claim.state == "fresh":
        turn.is_stored = call.is_started = True
    if claim.state == "taken":
        raise IdempotencyConflict()
    if claim.state == "unknown":
        raise IdempotencyConflict(
            "what became of the call of this idempotency key is not known",
            help="look at its effects before you try again",
        )
    if claim.state == "running":
        raise IdempotencyConflict(
            "the call of this idempotency key is still running",
            help="ask again later",
            code=RUNNING,
        )
    return claim.call if claim.state == "settled" else None
