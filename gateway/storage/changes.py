"""What settling, claiming, forgetting and pruning do to the rows of calls, in whichever database.

A connection is SQLite's, or a session of `gateway.storage.postgres` that does what is asked of one.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from gateway.errors import RecordConflict
from gateway.governance.outcomes import LateOutcome
from gateway.governance.records import Claim, StoredCall
from gateway.storage import statements
from gateway.storage.rows import call_from, call_row, owner_of, piece_rows, turn_row
from gateway.storage.turn_memories import remember

Row = dict[str, Any]


class Start(Protocol):
    def run(self, connection: Any) -> None: ...


def settle(connection: Any, row: Row, turn: Row | None, pieces: Iterable[Row]) -> None:
    """Raises `RecordConflict` for a call that has an outcome, and what a violated constraint raises."""
    if turn is not None:
        statements.ENSURE_TURN.run(connection, turn)
    if not statements.SETTLE_CALL.run(connection, row).rowcount:
        raise RecordConflict("the call has an outcome already")
    for piece in pieces:
        statements.INSERT_PIECE.run(connection, piece)


def settle_late(connection: Any, late: LateOutcome, *, process: str, at: int) -> None:
    """Write an outcome that could not be written before. Raises as `settle` does.

    A store that was replaced meanwhile knows neither the turn nor the key: both are written again.
    """
    call, memory = late.call, late.memory
    is_known = bool(statements.REMEMBERED.rows(connection, {"turn": call.turn_id}))
    turn = turn_row(late.turn) if memory is None else {**turn_row(late.turn), "memory": memory}
    settle(connection, call_row(call, status="settled", process=process), turn, piece_rows(call))
    if memory is not None and is_known:
        remember(connection, call.turn_id, memory, late.knowing)
    if late.held is not None:
        held: Row = {"owner": owner_of(call.principal), "key": late.held.key, "digest": late.held.digest}
        held |= {"until": late.held.until, "turn_id": call.turn_id, "call_id": call.id}
        if not statements.FIND_CLAIM.rows(connection, {**held, "at": at}):
            statements.DROP_CLAIM.run(connection, held)
            statements.INSERT_CLAIM.run(connection, held)


def give_up_left(
    connection: Any, process: str, at: int, is_running: Callable[[tuple[str, str]], bool]
) -> list[StoredCall]:
    """Make started calls of a process that lives `unknown` if it does not run them; which ones."""
    left = []
    for row in statements.STARTED_BY.rows(connection, {"gone": process}):
        name = (row["turn_id"], row["id"])
        if not is_running(name):
            statements.GIVE_UP_CALL.run(connection, {"turn": name[0], "call": name[1], "at": at})
            left.append(call_from(row))
    return left


def claim(connection: Any, wanted: Row, at: int, start: Start) -> Claim:
    """Start the call that a key is to stand for, unless it stands for one already."""
    for holder in statements.FIND_CLAIM.rows(connection, {**wanted, "at": at}):
        if holder["digest"] != wanted["digest"]:
            return Claim("taken")
        [found] = statements.CALL_OF_TURN.rows(connection, {"turn_id": holder["turn_id"], "id": holder["call_id"]})
        call = call_from(found)
        if call.status != "settled" or call.decision not in ("hold", "deny"):  # those never ran, and spent nothing
            return Claim("running" if call.status == "started" else call.status, call)
    start.run(connection)
    statements.DROP_CLAIM.run(connection, wanted)
    statements.INSERT_CLAIM.run(connection, wanted)
    return Claim("fresh")


def forget_pieces(connection: Any, rows: Iterable[Row]) -> None:
    for row in rows:
        statements.FORGET_PIECE.run(connection, row)


def prune_some(connection: Any, wanted: Row) -> int:
    """Some turns past their end of life, with their calls; how many of both."""
    pruned = 0
    for row in statements.PRUNABLE.rows(connection, wanted):
        turn = {"turn": row["id"]}
        statements.PRUNE_PIECES.run(connection, turn)
        pruned += statements.PRUNE_CALLS.run(connection, turn).rowcount
        pruned += statements.PRUNE_TURN.run(connection, turn).rowcount
    return pruned
