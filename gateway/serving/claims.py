"""Idempotency keys: a call that is sent again runs once, and is answered with what became of it."""

from datetime import timedelta
from functools import partial
from typing import Final

from gateway.core.events import now
from gateway.core.moments import microseconds
from gateway.errors import IdempotencyConflict, RecordConflict
from gateway.governance.outcomes import HeldKey
from gateway.governance.records import Store, StoredCall
from gateway.serving.current import ServedCall
from gateway.serving.keeping import started
from gateway.serving.turns import Turn

KEY_LIFE: Final = timedelta(days=1)
"""How long a key is remembered where no pipeline says it."""

RUNNING: Final = "E_IDEMPOTENCY_RUNNING"

MAX_KEY: Final = 255


def is_key(text: str) -> bool:
    """Whether a caller may use it as a key: 1 to `MAX_KEY` printable ASCII characters."""
    return 0 < len(text) <= MAX_KEY and text.isascii() and text.isprintable()


async def claimed(store: Store, turn: Turn, call: ServedCall) -> StoredCall | None:
    """`None` if the call may run; the settled call if it ran before."""
    claiming = started(call, turn.id)
    assert call.idempotency_key is not None  # noqa: S101 - only calls with a key are claimed
    digest, until = f"{call.catalogue}:{claiming.fingerprint}", now() + _life(turn, call)
    claiming_with = partial(
        store.claim, call.idempotency_key, turn.principal, digest=digest, call=claiming, until=until
    )
    try:
        claim = await claiming_with(turn=None if turn.is_stored else turn.stored)
    except RecordConflict:
        if not turn.is_stored:
            raise
        claim = await claiming_with(turn=turn.stored)  # a store that was replaced does not know the turn
    if claim.state == "fresh":
        turn.is_stored = call.is_started = True
        call.held_key = HeldKey(call.idempotency_key, digest, microseconds(until))
    if claim.state == "taken":
        raise IdempotencyConflict(help="use a new key, or send the arguments that this key was first used with")
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


def _life(turn: Turn, call: ServedCall) -> timedelta:
    """What the pipeline says. A call that somebody agreed to has a key of ours, for as long as it may be asked for."""
    snapshot = turn.published.snapshot
    pipeline = snapshot.pipelines.get(snapshot.catalogues[call.catalogue].pipeline)
    stage = None if pipeline is None else pipeline.stage("idempotency")
    kept: timedelta = KEY_LIFE if stage is None else stage.options["keep"]
    return max(kept, KEY_LIFE) if call.holding.approvals or call.holding.answer else kept
