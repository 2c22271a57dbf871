"""Conversion between calls of the model and stored calls.

A stored result names its bytes; reading it needs the spool with the bytes and the class that reads them.
"""

import logging
from asyncio import timeout, to_thread
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Protocol

from gateway.engine.artifact_classes import ArtifactTypes
from gateway.engine.call import Call
from gateway.engine.turns.implicit_turns import implicit_digest
from gateway.errors import InvalidInitialToolCallValue, StorageError, StoreUnavailable
from gateway.model import (
    ByteStore,
    ContentStream,
    InMemoryMediaReader,
    Media,
    OpenedMediaReader,
    SpoolContent,
    SpoolReader,
    Tokenizable,
    ToolCall,
    call_id,
    fingerprint_of,
    is_artifact,
    now_microseconds,
    pieces_of,
)
from gateway.storage import ArgumentExcerpt, ReplayArguments, StoredCall, StoredResult

_GONE: Final = "the bytes of this result are no longer stored"
_CHUNK: Final = 1 << 20
_FETCH_SECONDS: Final = 30.0

_log: Final = logging.getLogger(__name__)


class Spool(Protocol):
    """Stores the bytes of results, separately for each tenant.

    A reader's `describe()` names its bytes permanently, under `locator`. The bytes of a reader with `content` are
    stored in the record and become durable with it.
    """

    def for_turn(self, turn_id: str, *, tenant: str | None = None) -> "TurnByteStore":
        """Return the store for the results of one turn."""
        ...

    async def find(self, key: str, *, tenant: str | None) -> SpoolReader | None: ...

    async def delete(self, key: str) -> bool: ...


class TurnByteStore(ByteStore, Protocol):
    async def write(self, id: str, content: SpoolContent | ContentStream, *, limit: int | None = None) -> SpoolReader:
        """Raise before more than the limit is stored; nothing is left behind then."""
        ...

    def write_inline(self, id: str, content: bytes, *, limit: int | None = None) -> SpoolReader | None:
        """Store bytes inside the record, without waiting; `None` if they do not fit there."""
        ...


def to_started_row(call: Call, turn_id: str) -> StoredCall:
    """Return the row of a call that is about to run."""
    return StoredCall(
        call.id,
        turn_id,
        call.tool,
        call.identity or call.tool,
        call.args,
        call.checksum or call_id(call.tool, call.args),
        call.principal,
        call.catalogue,
        call.revision,
        now_microseconds(),
        decision=call.decision,
        because=call.because,
        idempotency_key=call.idempotency_key,
        trace_id=None if call.seen is None else call.seen.trace_id,
        span_id=None if call.seen is None else call.seen.span_id,
        exact=call.exact,
        reason=call.reason or None,
        decided=call.decided,
        implicit=find_implicit(call),
    )


def find_implicit(call: Call) -> str | None:
    """Return what names the state that a call without a turn of its own shares with others."""
    turn = call.turn
    return implicit_digest(call.principal, call.catalogue) if turn is not None and turn.is_single_call else None


async def to_stored_results(
    record: ToolCall, artifact: str, spool: "TurnByteStore", *, fetches: int | None = None
) -> list[StoredResult]:
    """Return the stored form of the results of a call; media in memory are written to the spool.

    With `fetches`, media whose bytes are elsewhere are written, too, up to that many bytes each.
    """
    found = record.results
    results: list[StoredResult] = []
    for piece in found if isinstance(found, list) else (found,):
        if isinstance(piece, Media):
            results.append(await _to_stored_media(piece, f"{record.id}#{len(results)}", spool, fetches))
        else:
            results.append(to_stored_result(piece, artifact))
    return results


def to_stored_call(
    record: ToolCall,
    call: Call,
    results: list[StoredResult],
    turn_id: str,
    excerpt: ArgumentExcerpt | None = None,
    *,
    reason: str,
    replay: ReplayArguments | None = None,
) -> StoredCall:
    """Return the row of a settled call; an excerpt replaces its arguments."""
    seen = call.seen
    return StoredCall(  # positional, in the order of the fields: keywords would double the cost
        record.id,
        turn_id,
        record.tool,
        call.identity or record.tool,
        # The value that `args_text` encodes: saves a copy.
        {} if excerpt is not None else record.args if call.args_text is None else call.args,
        record.checksum,
        call.principal,
        call.catalogue,
        call.revision,
        record.created,
        "settled",
        None,
        call.decision,
        call.because,
        record.is_error,
        record.inline,
        bool(record.trusted),
        record.from_artifact_tool,
        results,
        record.completed,
        call.idempotency_key,
        None if seen is None else seen.trace_id,
        None if seen is None else seen.span_id,
        None if excerpt is not None else call.args_text,
        call.exact,
        excerpt,
        reason,
        call.decided,
        find_implicit(call),
        replay,
    )


async def from_stored_call(stored: StoredCall, types: ArtifactTypes, spool: Spool) -> ToolCall:
    """Return the record, with its artifacts and media over the bytes that are still stored.

    Raise `InvalidInitialToolCallValue` if the arguments were changed after they were stored.
    """
    args = dict(stored.args)
    if stored.excerpt is None and not is_intact(stored):
        raise InvalidInitialToolCallValue("the stored arguments are not those of the call")
    tenant = stored.principal.tenant
    pieces = [await _restore(each, types, spool, tenant=tenant) for each in stored.results]
    lost = next((each for each in pieces if isinstance(each, Tokenizable)), None)
    results: Any = lost or (pieces[0] if len(pieces) == 1 else pieces)
    if stored.excerpt is not None:  # the checksum cannot be recomputed from an excerpt
        return ToolCall.from_result(
            id=stored.id,
            tool=stored.tool,
            args={},
            checksum=stored.checksum,
            is_error=stored.is_error,
            results=results,
            from_artifact_tool=stored.from_artifact_tool,
            inline=stored.inline,
            trusted=stored.trusted,
            created=stored.created,
            completed=stored.created if stored.completed is None else stored.completed,
        )
    completed_at = stored.completed_at or stored.created_at
    return ToolCall(
        id=stored.id,
        tool=stored.tool,
        args=args,
        checksum=stored.checksum,
        is_complete=True,
        is_error=stored.is_error,
        results=results,
        from_artifact_tool=stored.from_artifact_tool,
        inline=stored.inline,
        trusted=stored.trusted,
        created_at=stored.created_at,
        updated_at=completed_at,
        completed_at=completed_at,
    )


def is_intact(stored: StoredCall) -> bool:
    """Whether the stored arguments have exactly the digest that was stored with them."""
    return recompute_fingerprint(stored) == stored.fingerprint


def recompute_fingerprint(stored: StoredCall) -> str:
    """Return the exact digest of the stored arguments; empty if they are no longer JSON."""
    try:
        return fingerprint_of(stored.tool, stored.args)
    except (TypeError, ValueError):
        return ""


def to_stored_result(piece: Any, artifact: str) -> StoredResult:
    """Return the stored form of a text or an artifact. `artifact` is the name of the class its tool yields."""
    if isinstance(piece, Tokenizable):
        return StoredResult("text", text=str(piece))
    reader = getattr(piece, "stored_reader", None) or getattr(piece, "reader", None)
    size = reader.byte_length() if reader is not None else None
    size = size if isinstance(size, int) else None
    return StoredResult("artifact", None, _key(reader), artifact, size, {}, getattr(reader, "content", None))


async def _to_stored_media(media: Media, key: str, spool: "TurnByteStore", fetches: int | None) -> StoredResult:
    """Spool bytes in memory, which would be lost with the process. Bytes elsewhere are fetched on first read, unless
    the turn, which knows how to fetch them, will be gone by then.
    """
    reader: SpoolReader | None = None
    if isinstance(media.reader, InMemoryMediaReader):
        try:
            reader = await spool.write(key, media.reader.stream())
        except StorageError as error:
            message = f"the tool ran, but its result could not be kept: {error.message}"
            raise type(error)(message, help=error.help) from None
    elif fetches is not None:
        reader = await _fetch_media(media, key, spool, fetches)
    details = {**media.to_json(), "stash": media.stash.all()}
    # The name that the media's own reader has (a file, an address) is not a name in the spool.
    spooled = None if reader is None else _key(reader)
    content = getattr(reader, "content", None)
    return StoredResult("media", key=spooled, type=media.kind, details=details, content=content)


async def _fetch_media(media: Media, key: str, spool: "TurnByteStore", limit: int) -> SpoolReader | None:
    """Return the spooled bytes; `None` if their source fails. The call itself succeeded: its record stays."""
    try:
        async with timeout(_FETCH_SECONDS):
            return await spool.write(key, media.stream(), limit=limit)
    except StoreUnavailable:
        raise
    except Exception as error:  # the source is the tool author's code: it may raise anything
        _log.warning("media of a call could not be fetched, and cannot be downloaded: %s", type(error).__name__)
        return None


def _key(reader: Any) -> str | None:
    key = getattr(reader, "key", None)
    if type(key) is str:
        return key
    describe = getattr(reader, "describe", None)
    return str(describe()["locator"]) if callable(describe) else None


async def _restore(piece: StoredResult, types: ArtifactTypes, spool: Spool, *, tenant: str | None) -> Any:
    if piece.kind == "text":
        return Tokenizable(piece.text or " ")
    reader = await spool.find(piece.key, tenant=tenant) if piece.key else None
    if reader is None:
        return Tokenizable(_GONE)
    return _media(piece, reader) if piece.kind == "media" else await types.wrap(piece.type or "text", reader)


def _media(piece: StoredResult, reader: Any) -> Media:
    details = piece.details
    return Media(
        id=details["id"],
        kind=details["kind"],
        mime_type=details["mimeType"],
        filename=details["filename"],
        trust_tier=details["trustTier"],
        modality_hazard=details["modalityHazard"],
        source=details.get("source"),
        stash=details["stash"],
        reader=OpenedMediaReader(lambda: _chunks(reader), reader.byte_length()),
    )


def _chunks(reader: Any) -> Iterator[bytes] | AsyncIterator[bytes]:
    return _fetch_chunks(reader) if getattr(reader, "is_remote", False) else _read(reader)


def _read(reader: Any) -> Iterator[bytes]:
    for offset in range(0, reader.byte_length(), _CHUNK):
        yield reader.read_range(offset, _CHUNK)


async def _fetch_chunks(reader: Any) -> AsyncIterator[bytes]:
    for offset in range(0, reader.byte_length(), _CHUNK):
        yield await to_thread(reader.read_range, offset, _CHUNK)


def is_queryable(record: ToolCall) -> bool:
    """Whether a result contains an artifact that query tools can read."""
    return not record.from_artifact_tool and any(is_artifact(each) for _, each in pieces_of(record.id, record.results))
