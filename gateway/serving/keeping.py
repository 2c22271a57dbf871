"""Between calls as the model knows them and calls as they are stored.

A stored result names its bytes; reading one again needs the spool that has them and the class that reads them.
"""

import logging
from asyncio import timeout, to_thread
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Protocol

from gateway.core.artifacts import is_artifact, pieces_of
from gateway.core.calls import ToolCall
from gateway.core.canonical import call_id
from gateway.core.exact_json import fingerprint_of
from gateway.core.media import InMemoryMediaReader, Media, OpenedMediaReader
from gateway.core.moments import clock
from gateway.core.spool import ByteStore, Content, SpoolReader, Stream
from gateway.core.tokens import Tokenizable
from gateway.errors import InvalidInitialToolCallValue, StorageError, StoreUnavailable
from gateway.governance.records import ArgumentExcerpt, StoredCall, StoredResult
from gateway.serving.artifact_types import ArtifactTypes
from gateway.serving.current import ServedCall

_GONE: Final = "the bytes of this result are no longer kept"
_CHUNK: Final = 1 << 20
_FETCH_SECONDS: Final = 30.0

_log: Final = logging.getLogger(__name__)


class Spool(Protocol):
    """Where bytes of results are kept, apart for each tenant.

    A reader's `describe()` names its bytes for good, under `locator`. One that has `content` leaves its bytes to the
    record: they are durable together.
    """

    def scoped(self, turn_id: str, *, tenant: str | None = None) -> "TurnStore":
        """Keeps the results of one turn."""
        ...

    async def find(self, key: str, *, tenant: str | None) -> SpoolReader | None: ...

    async def delete(self, key: str) -> bool: ...


class TurnStore(ByteStore, Protocol):
    async def write(self, id: str, content: Content | Stream, *, limit: int | None = None) -> SpoolReader:
        """Raises before more than the limit is kept, and leaves nothing behind then."""
        ...

    def hold(self, id: str, content: bytes, *, limit: int | None = None) -> SpoolReader | None:
        """The same for bytes that go with the record, at once; `None` for those that do not."""
        ...


def started(call: ServedCall, turn_id: str) -> StoredCall:
    """What is stored of a call that is about to run."""
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
        clock(),
        decision=call.decision,
        because=call.because,
        idempotency_key=call.idempotency_key,
        trace_id=None if call.seen is None else call.seen.trace_id,
        span_id=None if call.seen is None else call.seen.span_id,
        exact=call.exact,
    )


async def stored_pieces(
    record: ToolCall, artifact: str, spool: "TurnStore", *, fetches: int | None = None
) -> list[StoredResult]:
    """What is stored of whatever a call produced: media in memory are spooled.

    With `fetches`, media whose bytes are elsewhere are spooled, too, up to that many bytes each.
    """
    found = record.results
    results: list[StoredResult] = []
    for piece in found if isinstance(found, list) else (found,):
        if isinstance(piece, Media):
            results.append(await _stored_media(piece, f"{record.id}#{len(results)}", spool, fetches))
        else:
            results.append(stored_piece(piece, artifact))
    return results


def settled(
    record: ToolCall,
    call: ServedCall,
    results: list[StoredResult],
    turn_id: str,
    excerpt: ArgumentExcerpt | None = None,
) -> StoredCall:
    """What is stored of a record; with an excerpt, that instead of its arguments."""
    seen = call.seen
    return StoredCall(  # in the order of the fields: names would double what it costs
        record.id,
        turn_id,
        record.tool,
        call.identity or record.tool,
        # What `args_text` is the text of: a copy less.
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
    )


async def restored(stored: StoredCall, types: ArtifactTypes, spool: Spool) -> ToolCall:
    """The record again, its artifacts and media over the bytes that are still kept.

    Raises `InvalidInitialToolCallValue` if the arguments are not those that were stored.
    """
    args = dict(stored.args)
    if stored.excerpt is None and not is_intact(stored):
        raise InvalidInitialToolCallValue("the stored arguments are not those that the call was made with")
    tenant = stored.principal.tenant
    pieces = [await _restored(each, types, spool, tenant=tenant) for each in stored.results]
    lost = next((each for each in pieces if isinstance(each, Tokenizable)), None)
    results: Any = lost or (pieces[0] if len(pieces) == 1 else pieces)
    if stored.excerpt is not None:  # nobody can compute the checksum again
        return ToolCall.of_settled(
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
    """Whether the stored arguments have the digest that was stored with them, exactly."""
    return recomputed(stored) == stored.fingerprint


def recomputed(stored: StoredCall) -> str:
    """The exact digest of what is stored now; empty if that is not JSON any more."""
    try:
        return fingerprint_of(stored.tool, stored.args)
    except (TypeError, ValueError):
        return ""


def stored_piece(piece: Any, artifact: str) -> StoredResult:
    """What is stored of a text or an artifact. `artifact` is the name of the class its tool yields."""
    if isinstance(piece, Tokenizable):
        return StoredResult("text", text=str(piece))
    reader = getattr(piece, "stored_reader", None) or getattr(piece, "reader", None)
    size = reader.byte_length() if reader is not None else None
    size = size if isinstance(size, int) else None
    return StoredResult("artifact", None, _key(reader), artifact, size, {}, getattr(reader, "content", None))


async def _stored_media(media: Media, key: str, spool: "TurnStore", fetches: int | None) -> StoredResult:
    """Bytes in memory would be gone with the process. Bytes elsewhere are fetched when somebody looks, not before,
    unless the turn will not be there to know how.
    """
    kept: SpoolReader | None = None
    if isinstance(media.reader, InMemoryMediaReader):
        try:
            kept = await spool.write(key, media.reader.stream())
        except StorageError as error:
            told = f"the tool ran, but its result could not be kept: {error.message}"
            raise type(error)(told, help=error.help) from None
    elif fetches is not None:
        kept = await _fetched_media(media, key, spool, fetches)
    details = {**media.to_json(), "stash": media.stash.all()}
    # What the media's own reader is called by (a file, an address) is no name in the spool.
    spooled = None if kept is None else _key(kept)
    content = getattr(kept, "content", None)
    return StoredResult("media", key=spooled, type=media.kind, details=details, content=content)


async def _fetched_media(media: Media, key: str, spool: "TurnStore", limit: int) -> SpoolReader | None:
    """The bytes, spooled; `None` if their source does not give them. The call itself succeeded: its record stays."""
    try:
        async with timeout(_FETCH_SECONDS):
            return await spool.write(key, media.stream(), limit=limit)
    except StoreUnavailable:
        raise
    except Exception as error:  # the source is the tool author's: it may raise anything
        _log.warning("media of a call could not be fetched, and cannot be downloaded: %s", type(error).__name__)
        return None


def _key(reader: Any) -> str | None:
    key = getattr(reader, "key", None)
    if type(key) is str:
        return key
    describe = getattr(reader, "describe", None)
    return str(describe()["locator"]) if callable(describe) else None


async def _restored(piece: StoredResult, types: ArtifactTypes, spool: Spool, *, tenant: str | None) -> Any:
    if piece.kind == "text":
        return Tokenizable(piece.text or " ")
    reader = await spool.find(piece.key, tenant=tenant) if piece.key else None
    if reader is None:
        return Tokenizable(_GONE)
    return _media(piece, reader) if piece.kind == "media" else await types.over(piece.type or "text", reader)


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
    return _fetched(reader) if getattr(reader, "is_remote", False) else _read(reader)


def _read(reader: Any) -> Iterator[bytes]:
    for offset in range(0, reader.byte_length(), _CHUNK):
        yield reader.read_range(offset, _CHUNK)


async def _fetched(reader: Any) -> AsyncIterator[bytes]:
    for offset in range(0, reader.byte_length(), _CHUNK):
        yield await to_thread(reader.read_range, offset, _CHUNK)


def is_queryable(record: ToolCall) -> bool:
    """Whether there is an artifact in a result that can be asked about."""
    return not record.from_artifact_tool and any(is_artifact(each) for _, each in pieces_of(record.id, record.results))
