"""Turns that go in circles: the same call, again and again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gateway.core.context import Context
from gateway.core.pipeline import Next
from gateway.errors import LoopStopped

PROPOSED_CALLS: Final = "gateway.proposedCalls"
"""Where the stash of a dispatch holds the exact digests of calls that are about to be made, as a list."""

EARLIER_CALLS: Final = "gateway.earlierCalls"
"""And how often calls were made that the turn itself holds no record of, by digest."""

Proposed = Callable[[Context], Sequence[str]]


def announced(ctx: Context) -> Sequence[str]:
    """The digests in the stash; none if nobody put them there."""
    fingerprints: list[str] = ctx.stash.get(PROPOSED_CALLS, [])
    return fingerprints


class LoopGuard:
    """Refuses a call once it was made `same_call` times in its turn, whatever came of it.

    Equal means of equal tool and raw arguments, to the last digit. As a stage it checks the calls that `proposed` tells
    of a dispatch; whoever knows a call earlier asks `check` itself.
    """

    def __init__(self, same_call: int, proposed: Proposed = announced) -> None:
        self._same_call = same_call
        self._proposed = proposed

    def check(self, ctx: Context, fingerprint: str, *, pending: int = 0) -> None:
        """Raises `LoopStopped` if the turn has had enough of the call; `pending` ones count, though not settled yet."""
        earlier: Mapping[str, int] = ctx.stash.get(EARLIER_CALLS, {})
        made = ctx.equal_call_count(fingerprint) + earlier.get(fingerprint, 0) + pending
        if made >= self._same_call:
            times = "once" if made == 1 else f"{made} times"
            error = LoopStopped(
                f"this call was already made {times} in this turn with the same arguments; "
                "use what it answered, or call with other arguments"
            )
            ctx.emit_warning("loop-stopped", error.message, error)
            raise error

    async def __call__(self, ctx: Context, next: Next) -> None:
        """Checks the proposed calls, counting those among them that are equal."""
        proposed = list(self._proposed(ctx))
        for index, fingerprint in enumerate(proposed):
            self.check(ctx, fingerprint, pending=proposed[:index].count(fingerprint))
        await next()
