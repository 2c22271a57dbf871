"""Recorded calls as a gateway would have written them, and policies that decide about them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gateway.model.caller import Principal
from gateway.model.primitives.identifiers import new_id
from gateway.model.primitives.json_fingerprint import fingerprint_of
from gateway.policy.access import Access
from gateway.review.replay.differences import ReplayGroup, ReplayResult
from gateway.review.replay.recorded_calls import RecordedCall, RecordedHistory
from gateway.review.replay.replay import replay_calls
from tests.review.replay.every_rule import load, write_every_rule

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
ANA = Principal("user:ana", frozenset({"role:agent"}))


def access_of(folder: Path, **changes: Any) -> Access:
    """Return the access of the project with every kind of rule, changed."""
    access = load(write_every_rule(folder, **changes)).access
    assert access is not None
    return access


def recorded(tool: str = "plain", *, after: float = 0, **fields: Any) -> RecordedCall:
    """Return a call of Ana, made so many seconds after noon, that was allowed and took a millisecond."""
    at = int((NOON + timedelta(seconds=after)).timestamp() * 1e6)
    arguments = fields.pop("arguments", {"text": "a"})
    given: dict[str, Any] = {
        "id": new_id(),
        "principal": ANA,
        "subject": ANA.subject,
        "catalogue": "desk",
        "at": at,
        "decision": "allow",
        "reason": "permitted",
        "ended": at + 1_000,
        "turn": "turn_1",
        "arguments": arguments,
        "fingerprint": None if arguments is None else fingerprint_of(tool, arguments),
        "size": 10,
        **fields,
    }
    return RecordedCall(tool=tool, **given)


def replay(calls: Sequence[RecordedCall], access: Access, *, baseline: Access | None = None, **of: Any) -> ReplayResult:
    selection = of.pop("selection", None)
    more = {} if selection is None else {"selection": selection}
    return replay_calls(RecordedHistory(calls, **of), access, baseline=baseline, **more)


def only_group(result: ReplayResult) -> ReplayGroup:
    [group] = result.groups
    return group
