"""Writes of turn states: what is stored after the writes of one process, next to those of others."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gateway.policy.rules.turn_state import InvalidTurnState, TurnState, load_turn_state


class TurnStateWrite(NamedTuple):
    """The new state of a turn. If the stored one is not `knowing`, another process has changed it: both are merged."""

    turn_id: str
    memory: bytes
    knowing: bytes | None


def merge_state_writes(writes: Iterable[TurnStateWrite], stored: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Return the new states of those turns that are stored, after writes of one process in any order.

    A write that continues the one before it replaces it. Between two others, a write of another group may be missing
    that is still to come: each is merged by itself, so that nothing is counted twice.
    """
    runs: list[TurnStateWrite] = []
    last: dict[str, int] = {}
    for write in writes:
        at = last.get(write.turn_id)
        if at is not None and runs[at].memory == write.knowing:
            runs[at] = runs[at]._replace(memory=write.memory)
        else:
            last[write.turn_id] = len(runs)
            runs.append(write)
    merged: dict[str, bytes] = {}
    for turn_id, memory, knowing in runs:
        if turn_id in stored:
            before = merged.get(turn_id, stored[turn_id])
            if before is None or before in (knowing, memory):  # `memory`: the write was made, and not confirmed
                merged[turn_id] = memory
            else:
                merged[turn_id] = merge_turn_states(memory, before, since=knowing)
    return merged


def merge_turn_states(ours: bytes, theirs: bytes, *, since: bytes | None) -> bytes:
    """Return the merged state of two processes. Unreadable state stays as it is, so that it allows nothing."""
    try:
        memory = TurnState.from_json(ours)
        memory.merge(TurnState.from_json(theirs), since=load_turn_state(since))
    except InvalidTurnState:
        return theirs
    return memory.to_json()
