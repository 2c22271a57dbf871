"""Recorded calls for a replay, from a store: its calls, and what only its decision log has.

The log has requests that are no calls (a prompt, a resource, a whole result), which turns remember, and calls of tools
that the caller may not know of. Rows were written by the gateway; what cannot be read of one counts as not stored.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from heapq import merge
from operator import attrgetter
from typing import Any, Final

from gateway.app.project import LoadedProject
from gateway.app.secrets import Secrets
from gateway.app.stores.operator_stores import locate_records
from gateway.app.stores.recorded_entries import to_recorded_entry
from gateway.errors import StoreUnavailable
from gateway.model import Principal
from gateway.registries import CONTENT
from gateway.review import CallSelection, RecordedCall, RecordedHistory
from gateway.storage import CallHistory, CallRow, StoreLocation, open_call_history

_PLACED: Final = re.compile(
    r"(?P<rules>[^ ]+(?:, [^ ]+)*) at (?P<place>.+?:\d+)(?::\d+)?(?:, approved|, confirmed by the caller|: .*)?",
    re.DOTALL,
)
_BY_ROW: Final = re.compile(
    r"(?:allowed|denied) to .+ by (?P<place>.+:\d+)(?:, by grant (?P<grants>[^ ]+(?:, [^ ]+)*))?"
)
_BY_LIMIT: Final = frozenset({"rate-exceeded", "quota-exceeded"})
_BY_POLICY: Final = frozenset({"permitted", "not-permitted", "rule-allowed"})
_ENTRIES: Final = (
    *('"identity":"prompt:', '"identity":"resource:', f'"tool":"{CONTENT}"'),
    *('"reason":"unknown-tool"', '"reason":"not-in-audience"'),
)
"""Texts of entries that have no call in the store."""


@contextmanager
def open_recorded_calls(
    assembled: LoadedProject, secrets: Secrets, selection: CallSelection, *, looks_back: bool
) -> Iterator[RecordedHistory]:
    """Open the history of a project's store. Raises `StoreMissing` or `StoreUnavailable`."""
    with read_recorded_calls(locate_records(assembled, secrets), selection, looks_back=looks_back) as history:
        yield history


@contextmanager
def read_recorded_calls(
    location: StoreLocation, selection: CallSelection, *, looks_back: bool
) -> Iterator[RecordedHistory]:
    """Open the history of a store. `looks_back`: earlier calls matter to the decisions about those selected."""
    with open_call_history(location) as history:
        since = None if looks_back else selection.since
        oldest = history.find_oldest()
        counted = [
            each.counted for each in history.counted_refusals(selection.since) if _is_selected(each.owner, selection)
        ]
        yield RecordedHistory(
            _in_order(history, since),
            complete_since=None if oldest is None or oldest[0] == 1 else oldest[1],
            total=history.count(since),
            unrecorded=sum(counted),
            grants=history.grants(),
        )


def _in_order(history: CallHistory, since: int | None) -> Iterator[RecordedCall]:
    calls = map(_read_row, history.calls(since))
    entries = filter(None, (to_recorded_entry(_parse(body)) for _, body in history.entries(since, _ENTRIES)))
    return merge(calls, entries, key=attrgetter("at"))


def _read_row(row: CallRow) -> RecordedCall:
    try:
        return to_recorded_call(row)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        message = f"call {row.number} of the store is not as a gateway writes it"
        raise StoreUnavailable(message, help="run gateway storage check") from None


def _is_selected(owner: str, selection: CallSelection) -> bool:
    return not selection.callers or json.loads(owner)[1] in selection.callers


def _parse(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def to_recorded_call(row: CallRow) -> RecordedCall:
    """Return the call of a row."""
    principal = _principal(row.owner, row.roles)
    reason = row.reason or _guess_reason(row)
    rules, position = _find_decider(reason, row.because, row.decision)
    by_row = _BY_ROW.fullmatch(row.because or "") if row.decision == "allow" else None
    arguments, masked = _read_arguments(row)
    checksum, _, exact = row.checksum.partition(" ")
    size, artifact = _measure(row)
    return RecordedCall(
        row.id,
        row.tool,
        principal,
        principal.subject,
        row.catalogue,
        row.moment,
        row.decision,  # type: ignore[arg-type]  # only such words are written
        reason,
        rules,
        row.because,
        position,
        row.completed_at,
        None if row.reason is None else row.turn_id,  # older rows do not tell whether the call shared a state
        row.implicit,
        arguments,
        masked,
        exact or checksum or None,
        size,
        artifact,
        grants=() if by_row is None or by_row["grants"] is None else tuple(by_row["grants"].split(", ")),
    )


@lru_cache(maxsize=4096)  # callers make many calls
def _principal(owner: str, roles: str) -> Principal:
    tenant, subject = json.loads(owner)
    return Principal(subject, frozenset(json.loads(roles)), tenant)


def _guess_reason(row: CallRow) -> str | None:
    """Return the reason of a call from before reasons were stored; `None` if its decision does not tell."""
    because = row.because or ""
    if row.decision == "allow":
        approved = "approval-approved" if because.endswith(", approved") else "permitted"
        return "confirmed" if because.endswith(", confirmed by the caller") else approved
    if row.decision == "hold":
        return "rule-held"
    return "arguments-invalid" if row.decision is None and row.status == "settled" and row.is_error else None


def _find_decider(reason: str | None, because: str | None, decision: str | None) -> tuple[tuple[str, ...], str | None]:
    """Return the rules and the place that words about a decision name."""
    if because is None:
        return (), None
    if reason in _BY_LIMIT:
        return (because,), None
    if reason in _BY_POLICY:
        by_row = _BY_ROW.fullmatch(because)
        return (), None if by_row is None else by_row["place"]
    found = _PLACED.fullmatch(because)
    return ((), None) if found is None else (tuple(found["rules"].split(", ")), found["place"])


def _read_arguments(row: CallRow) -> tuple[Mapping[str, Any] | None, frozenset[str]]:
    """Return the arguments and the names of masked ones. An excerpt of a refused call has none."""
    found = json.loads(row.args)
    if isinstance(found, dict):
        return found, frozenset()
    if not isinstance(found, list):
        raise ValueError("neither arguments nor an excerpt")
    if row.replay is None:
        return None, frozenset()
    values, masked = json.loads(row.replay)
    return values, frozenset(masked)


def _measure(row: CallRow) -> tuple[int | None, str | None]:
    """Return the bytes that the turn counted for the result, and the class of its first artifact."""
    if row.status != "settled":
        return None, None
    pieces = json.loads(row.results)
    artifact = next((each.get("type") for each in pieces if each["kind"] == "artifact"), None)
    if row.from_artifact_tool and not row.is_error:
        return sum(len(each.get("text", "").encode("utf-8", "surrogatepass")) for each in pieces), artifact
    return sum(each.get("byteLength") or 0 for each in pieces), artifact
