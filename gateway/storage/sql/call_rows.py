"""Conversion of turns and calls to rows and back."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from json import dumps, loads
from typing import Any, Final, cast

from gateway.model import Principal, canonical
from gateway.model import from_microseconds as from_microseconds
from gateway.model import to_microseconds as to_microseconds
from gateway.policy import Decision
from gateway.storage.blobs.blob_store import is_inline
from gateway.storage.call_store import (
    ArgumentExcerpt,
    CallStatus,
    ReplayArguments,
    ResultKind,
    StoredCall,
    StoredResult,
    StoredTurn,
    TurnEndReason,
)
from gateway.storage.sql.column_values import (
    encode_results,
    owner_columns,
    owner_text,
    replace_surrogates,
    require_storable_id,
    result_fields,
)

Row = Mapping[str, Any]

_LONG_NUMBER: Final = re.compile(r"[0-9][0-9]{15}")  # searching for the first digit by itself takes half the time


def owner_key(principal: Principal) -> str:
    return owner_text(principal.tenant, principal.subject)


def turn_to_row(turn: StoredTurn) -> dict[str, Any]:
    return {
        "id": require_storable_id(turn.id),
        **principal_columns(turn.principal),
        "catalogue": turn.catalogue,
        "revision": turn.revision,
        "secret": turn.secret,
        "created_at": turn.created,
        "expires_at": turn.expires,
        "stash": encode_json(turn.stash),
        "ended_at": turn.ended,
        "ending": turn.ending,
        "memory": turn.memory,
    }


def turn_from_row(row: Row) -> StoredTurn:
    return StoredTurn(
        id=row["id"],
        principal=_principal(row),
        catalogue=row["catalogue"],
        revision=row["revision"],
        secret=row["secret"],
        created=row["created_at"],
        expires=row["expires_at"],
        stash=loads(row["stash"]),
        ended=row["ended_at"],
        ending=cast("TurnEndReason | None", row["ending"]),  # only such words are written
        memory=row["memory"],
    )


def call_to_row(call: StoredCall, *, status: CallStatus, process: str) -> dict[str, Any]:
    return {
        "turn_id": require_storable_id(call.turn_id),
        "id": require_storable_id(call.id),
        **principal_columns(call.principal),
        "tool": replace_surrogates(call.tool),
        "identity": replace_surrogates(call.identity),
        "args": arguments_text(call),
        "checksum": checksum_text(call),
        "catalogue": call.catalogue,
        "revision": call.revision,
        "created_at": call.created,
        "status": status,
        "definition": call.definition,
        "decision": call.decision,
        "because": None if call.because is None else replace_surrogates(call.because),
        "is_error": call.is_error,
        "inline": call.inline,
        "trusted": call.trusted,
        "from_artifact_tool": call.from_artifact_tool,
        "results": results_to_json(call.results),
        "completed_at": call.completed,
        "idempotency_key": call.idempotency_key,
        "process": process,
        "trace_id": call.trace_id,
        "span_id": call.span_id,
        "reason": call.reason,
        "decided_at": call.decided,
        "implicit": call.implicit,
        "replay": replay_text(call),
    }


def checksum_text(call: StoredCall) -> str:
    """Return the checksum and, if it differs because the checksum rounds a number, a space and the exact digest."""
    return call.checksum if call.exact is None else f"{call.checksum} {call.exact}"


def call_from_row(row: Row) -> StoredCall:
    args, excerpt = _arguments(row["args"])
    checksum, _, exact = row["checksum"].partition(" ")
    return StoredCall(
        id=row["id"],
        turn_id=row["turn_id"],
        tool=row["tool"],
        identity=row["identity"],
        args=args,
        checksum=checksum,
        principal=_principal(row),
        catalogue=row["catalogue"],
        revision=row["revision"],
        created=row["created_at"],
        status=cast("CallStatus", row["status"]),  # only such words are written; likewise below
        definition=row["definition"],
        decision=cast("Decision | None", row["decision"]),
        because=row["because"],
        is_error=bool(row["is_error"]),
        inline=bool(row["inline"]),
        trusted=bool(row["trusted"]),
        from_artifact_tool=bool(row["from_artifact_tool"]),
        results=results_from_json(row["results"]),
        completed=row["completed_at"],
        idempotency_key=row["idempotency_key"],
        trace_id=row["trace_id"],
        span_id=row["span_id"],
        reason=row["reason"],
        decided=row["decided_at"],
        implicit=row["implicit"],
        replay=_replay_arguments(row["replay"]),
        exact=exact or None,
        excerpt=excerpt,
    )


def arguments_text(call: StoredCall) -> str:
    """Return arguments as a JSON object, or their excerpt as an array, which arguments can never be."""
    if call.excerpt is None:
        return encode_json(call.args, written=call.args_text)
    return canonical([call.excerpt.sha256, call.excerpt.bytes, call.excerpt.text])


def replay_text(call: StoredCall) -> str | None:
    """Return the arguments that are stored for replays, with the names of masked ones."""
    found = call.replay
    return None if found is None else encode_json([found.values, sorted(found.masked)])


def _replay_arguments(text: str | None) -> ReplayArguments | None:
    if text is None:
        return None
    values, masked = loads(text)
    return ReplayArguments(values, frozenset(masked))


def _arguments(text: str) -> tuple[dict[str, Any], ArgumentExcerpt | None]:
    found = loads(text)
    if not isinstance(found, list):
        return found, None
    digest, size, shown = found
    return {}, ArgumentExcerpt(shown, size, digest)


def blob_rows(call: StoredCall) -> list[dict[str, Any]]:
    """Return one row per piece that has a key. Raises `ValueError` for a small piece without its bytes."""
    rows = []
    for position, result in enumerate(call.results):
        if result.key is None:
            continue
        if is_inline(result.key) and result.content is None:
            raise ValueError(f"result {position} of the call is a small piece without content")
        columns = {"key": result.key, "turn_id": call.turn_id, "call_id": call.id}
        rows.append({**columns, "position": position, "content": result.content})
    return rows


def results_to_json(results: Sequence[StoredResult]) -> str:
    fields = [result_fields(each.kind, each.text, each.key, each.type, each.byte_length) for each in results]
    detailed = [each.details for each in results]
    if not any(detailed):
        return encode_results(fields)
    return encode_json(
        [each | ({"details": dict(more)} if more else {}) for each, more in zip(fields, detailed, strict=True)]
    )


def results_from_json(text: str) -> tuple[StoredResult, ...]:
    return tuple(_result(fields) for fields in loads(text))


def encode_json(value: Any, *, written: str | None = None) -> str:
    """Return canonical JSON, or `written` if it is encoded already. Any mapping is an object, any sequence an array.

    Integers that JavaScript would round are written in full, so that a record has the exact arguments.
    """
    try:
        text = written or canonical(value)
    except TypeError:
        value = _plain(value)
        text = canonical(value)
    if _LONG_NUMBER.search(text) and loads(text) != value:
        return dumps(value, sort_keys=True, separators=(",", ":"))
    return text


@lru_cache(maxsize=1024)  # it takes a sixth of the time of a row, and principals come again
def principal_columns(principal: Principal) -> dict[str, Any]:
    return owner_columns(principal.tenant, principal.subject, principal.roles)._asdict()


def _principal(row: Row) -> Principal:
    # From `owner`, which is compared, not from the columns that operators filter by.
    tenant, subject = loads(row["owner"])
    return Principal(subject, roles=frozenset(loads(row["roles"])), tenant=tenant)


def _result(fields: Row) -> StoredResult:
    return StoredResult(
        kind=cast("ResultKind", fields["kind"]),  # only such words are written
        text=fields.get("text"),
        key=fields.get("key"),
        type=fields.get("type"),
        byte_length=fields.get("byteLength"),
        details=fields.get("details", {}),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return [_plain(item) for item in value]
    return value
