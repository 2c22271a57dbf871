"""A turn that several processes serve learns of calls that were made in it elsewhere."""

from gateway.governance.records import Store
from gateway.serving.keeping import Spool, restored
from gateway.serving.rights import still_readable
from gateway.serving.turns import Turn


class CatchingUp:
    def __init__(self, store: Store, spool: Spool) -> None:
        self._store = store
        self._spool = spool

    async def __call__(self, turn: Turn) -> None:
        """Take in the settled calls that are on record and not in memory. Those that end here just now come by it."""
        known = {record.id for record in turn.ctx.turn_tool_calls}
        missing = [each for each in await self._store.calls_of(turn.id) if each.id not in known]
        if not missing:
            return
        types = turn.published.types
        found = {each.id: await restored(each, types, self._spool) for each in missing}
        here = turn.ctx.turn_tool_calls
        settled = turn.running | {record.id for record in here}
        for record in still_readable(turn, [*here, *found.values()]):
            if record.id in found and record.id not in settled:
                turn.ctx.adopt_tool_call(record)
