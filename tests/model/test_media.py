"""Media state their type and who vouches for them, never change, and are read only when their bytes are requested."""

import base64
import copy
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from uuid import UUID

import anyio
import pytest

from gateway.artifacts.spool_stores import InMemoryReader, InMemoryStore
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.turn_pipeline.dispatch_loop import dispatch
from gateway.engine.turn_pipeline.tool_execution import ProposedCall, settle_call
from gateway.errors import InvalidInitialMediaValue, NotAMediaReader, ValidationException
from gateway.model.media import (
    TIERS,
    FileMediaReader,
    InMemoryMediaReader,
    Media,
    OpenedMediaReader,
    TrustTier,
    is_media_reader,
    lower_trust_tier,
    modality_hazard,
    require_media_reader,
)
from gateway.model.provider_formats import openai_blocks
from gateway.model.schema.schema import Schema
from gateway.model.tools.artifact import is_spool_reader
from gateway.model.tools.tool import Tool
from gateway.model.turns.context import DispatchContext
from gateway.model.turns.events import TurnEvent
from gateway.model.turns.progress_reporter import Reporter

pytestmark = pytest.mark.anyio

FIELDS: dict[str, Any] = {
    "kind": "image",
    "mime_type": "image/png",
    "filename": "chart.png",
    "reader": InMemoryMediaReader(b"\x89PNG"),
    "trust_tier": "third-party-public",
    "modality_hazard": "opaque-perceptual",
}
REQUIRED = list(FIELDS)


class Untouchable:
    """A reader that fails on every read."""

    def stream(self) -> Any:
        raise AssertionError("the reader was touched")

    def byte_length(self) -> Any:
        raise AssertionError("the reader was touched")


class AlwaysEqual:
    """Claims to equal everything, and cannot be hashed."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]  # the point of this test


def media(**changes: Any) -> Media:
    return Media(**{**FIELDS, **changes})


def problems_of(**changes: Any) -> list[tuple[list[Any], str]]:
    with pytest.raises(InvalidInitialMediaValue) as raised:
        media(**changes)
    error = raised.value
    assert (error.code, error.status, error.fatal) == ("E_INVALID_INITIAL_MEDIA_VALUE", 500, True)
    assert isinstance(error.cause, ValidationException)
    return [(detail["path"], detail["type"]) for detail in error.cause.details]


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"inner": value}
    return value


# Fields.


async def test_media_keep_their_fields_and_get_an_unguessable_id() -> None:
    one, other = media(), media()

    assert {name: getattr(one, name) for name in FIELDS} == FIELDS
    assert one.source is None
    assert one.stash.all() == {}
    assert UUID(one.id).version == 4
    assert one.id != other.id


async def test_given_id_and_source_are_kept() -> None:
    given = media(id="m-1", source="https://example.com/chart")

    assert (given.id, given.source) == ("m-1", "https://example.com/chart")
    assert Media.is_media(given)
    assert not Media.is_media({"id": "m-1"})
    assert repr(given) == "Media('image', 'chart.png', 'third-party-public')"


@pytest.mark.parametrize("kind", ["image", "audio", "video", "document"])
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("hazard", ["inert", "extractable-instructions", "opaque-perceptual"])
async def test_kind_tier_and_hazard_are_independent(kind: str, tier: str, hazard: str) -> None:
    made = media(kind=kind, trust_tier=tier, modality_hazard=hazard)

    assert (made.kind, made.trust_tier, made.modality_hazard) == (kind, tier, hazard)


@pytest.mark.parametrize("field", REQUIRED)
async def test_every_required_field_has_no_default(field: str) -> None:
    given = {name: value for name, value in FIELDS.items() if name != field}

    with pytest.raises(InvalidInitialMediaValue) as raised:
        Media(**given)

    assert isinstance(raised.value.cause, ValidationException)
    assert [detail["path"] for detail in raised.value.cause.details] == [[field]]


async def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(InvalidInitialMediaValue) as raised:
        Media()

    assert isinstance(raised.value.cause, ValidationException)
    assert [detail["path"] for detail in raised.value.cause.details] == [[field] for field in REQUIRED]


BAD_VALUES: list[tuple[str, list[Any]]] = [
    ("kind", [None, "", "picture", "Image", 5, True, ["image"], {"image"}, AlwaysEqual()]),
    ("mime_type", [None, "", 5, ["image/png"], b"image/png"]),
    ("filename", [None, "", 5, Path("chart.png")]),
    ("reader", [None, "bytes", b"bytes", object(), InMemoryMediaReader, InMemoryReader("text")]),
    ("trust_tier", [None, "", "trusted", 0, ["first-party"], {}, AlwaysEqual()]),
    ("modality_hazard", [None, "", "harmless", False, ["inert"], AlwaysEqual()]),
    ("id", ["", 5, ["m"]]),
    ("source", ["", 5, ["s"]]),
    ("stash", [[], "text", 0, {1: {}}]),
]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param(field, value, id=f"{field}-{number}-{type(value).__name__}")
        for field, values in BAD_VALUES
        for number, value in enumerate(values)
    ],
)
async def test_hostile_value_is_one_clear_problem(field: str, value: Any) -> None:
    assert [path for path, _ in problems_of(**{field: value})] == [[field]]


async def test_unknown_fields_are_refused() -> None:
    assert problems_of(mimeType="image/png", size=5) == [(["mimeType"], "unknown"), (["size"], "unknown")]


async def test_fields_cannot_be_set_or_deleted() -> None:
    made = media()

    for name in (*FIELDS, "id", "source", "stash", "anything"):
        with pytest.raises(AttributeError):
            setattr(made, name, "changed")
        with pytest.raises(AttributeError):
            delattr(made, name)


async def test_copies_are_the_same_asset() -> None:
    made = media()

    assert copy.copy(made) is made
    assert copy.deepcopy({"results": [made]})["results"][0] is made


# Stash.


ENTRY = {"value": "a rising line", "trust_tier": "first-party"}


async def test_stash_holds_named_entries_and_may_be_extended() -> None:
    given: dict[str, Any] = {"text:caption": dict(ENTRY), "text:transcript": {**ENTRY, "derived_from_media": True}}
    made = media(stash=given)

    given["text:caption"]["value"] = "changed by the caller"
    made.stash.set("text:description", dict(ENTRY))

    assert made.stash.get("text:caption") == ENTRY
    assert made.stash.get("text:caption.value") == "a rising line"
    assert made.stash.get("text:description") == ENTRY


BAD_ENTRIES: list[tuple[str, Any, list[Any]]] = [
    ("text", "a rising line", ["stash", "c"]),
    ("empty", {}, ["stash", "c"]),
    ("no-tier", {"value": "v"}, ["stash", "c"]),
    ("no-value", {"trust_tier": "first-party"}, ["stash", "c"]),
    ("bad-tier", {"value": "v", "trust_tier": "mine"}, ["stash.c.trust_tier"]),
    ("unhashable-tier", {"value": "v", "trust_tier": ["first-party"]}, ["stash.c.trust_tier"]),
    ("extra-key", {**ENTRY, "note": "n"}, ["stash", "c", "note"]),
    ("too-deep", {**ENTRY, "value": nested(10_000)}, ["stash"]),
]


@pytest.mark.parametrize(("entry", "path"), [row[1:] for row in BAD_ENTRIES], ids=[row[0] for row in BAD_ENTRIES])
async def test_bad_stash_entry_is_refused(entry: Any, path: list[Any]) -> None:
    assert [found for found, _ in problems_of(stash={"c": entry})] == [path]


# Readers.


class Awaited:
    """Both methods are coroutines; the stream itself is an async generator."""

    async def stream(self) -> AsyncIterator[bytes]:
        return pieces()

    async def byte_length(self) -> int:
        return 4


async def pieces() -> AsyncIterator[bytes]:
    yield b"\x89P"
    yield b"NG"


class Generating:
    async def stream(self) -> AsyncIterator[bytes]:
        yield b"\x89PNG"

    def byte_length(self) -> None:
        return None


async def opened_later() -> BytesIO:
    return BytesIO(b"\x89PNG")


READERS: list[tuple[str, Any]] = [
    ("memory", InMemoryMediaReader(b"\x89PNG")),
    ("byte-array", InMemoryMediaReader(bytearray(b"\x89PNG"))),
    ("memory-view", InMemoryMediaReader(memoryview(b"\x89PNG"))),
    ("awaited-stream", Awaited()),
    ("async-generator", Generating()),
    ("list", OpenedMediaReader(lambda: [b"\x89P", bytearray(b"N"), memoryview(b"G")])),
    ("generator", OpenedMediaReader(lambda: (chunk for chunk in (b"\x89P", b"NG")))),
    ("whole-bytes", OpenedMediaReader(lambda: b"\x89PNG")),
    ("binary-file", OpenedMediaReader(lambda: BytesIO(b"\x89PNG"))),
    ("async-opener", OpenedMediaReader(opened_later)),
    ("another-media", media()),
]


@pytest.mark.parametrize("reader", [row[1] for row in READERS], ids=[row[0] for row in READERS])
async def test_media_read_the_whole_stream_afresh_each_time(reader: Any) -> None:
    made = media(reader=reader)

    assert await made.as_bytes() == b"\x89PNG"
    assert await made.as_bytes() == b"\x89PNG"
    assert b"".join([chunk async for chunk in made.stream()]) == b"\x89PNG"
    assert base64.b64decode(await made.as_base64()) == b"\x89PNG"


async def test_file_is_read_when_asked_for_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "chart.png"
    made = media(reader=FileMediaReader(str(path)))
    with pytest.raises(FileNotFoundError):
        await made.as_bytes()

    path.write_bytes(b"x" * (3 << 20))

    assert await made.byte_length() == 3 << 20
    assert [len(chunk) async for chunk in made.stream()] == [1 << 20] * 3
    assert FileMediaReader(path).describe() == {"tag": "media-file", "locator": str(path)}


async def test_one_shot_source_gives_its_bytes_once() -> None:
    once = iter([b"\x89P", b"NG"])
    spent = media(reader=OpenedMediaReader(lambda: once))
    assert await spent.as_bytes() == b"\x89PNG"
    assert await spent.as_bytes() == b""

    cached = media(reader=InMemoryMediaReader(b"".join([b"\x89P", b"NG"])))
    assert await cached.as_bytes() == await cached.as_bytes() == b"\x89PNG"


@pytest.mark.parametrize(
    ("reader", "length"),
    [
        (InMemoryMediaReader(b"\x89PNG"), 4),
        (InMemoryMediaReader(b""), 0),
        (Awaited(), 4),
        (Generating(), None),
        (OpenedMediaReader(lambda: []), None),
        (OpenedMediaReader(lambda: [], byte_length=7), 7),
    ],
    ids=["memory", "empty", "async", "unknown", "opened", "opened-known"],
)
async def test_length_is_a_number_or_unknown(reader: Any, length: int | None) -> None:
    assert await media(reader=reader).byte_length() == length


@pytest.mark.parametrize("length", ["4", 4.5, [4]], ids=repr)
async def test_length_that_is_no_whole_number_is_found_out(length: Any) -> None:
    with pytest.raises(TypeError):
        await media(reader=OpenedMediaReader(lambda: [], byte_length=length)).byte_length()


@pytest.mark.parametrize("opened", [None, 5, ["text"], [5], "text", [None]], ids=repr)
async def test_stream_of_anything_but_bytes_is_found_out(opened: Any) -> None:
    with pytest.raises(TypeError, match="bytes"):
        await media(reader=OpenedMediaReader(lambda: opened)).as_bytes()


@pytest.mark.parametrize("content", [5, "text", None, [1, 2]], ids=repr)
async def test_only_bytes_are_kept_in_memory(content: Any) -> None:
    with pytest.raises(TypeError, match="bytes"):
        InMemoryMediaReader(content)


async def test_source_is_closed_after_use_also_when_reading_stops_early() -> None:
    file = BytesIO(b"x" * (3 << 20))
    ended: list[str] = []

    async def generated() -> AsyncIterator[bytes]:
        try:
            yield b"one"
            yield b"two"
        finally:
            ended.append("generator")

    for opened in (file, generated()):
        stream: Any = media(reader=OpenedMediaReader(lambda opened=opened: opened)).stream()  # type: ignore[misc]
        await anext(stream)
        await stream.aclose()

    assert file.closed
    assert ended == ["generator"]


async def test_failing_source_raises_where_it_is_read() -> None:
    def broken() -> Any:
        raise OSError("unreachable")

    made = media(reader=OpenedMediaReader(broken))

    with pytest.raises(OSError, match="unreachable"):
        await made.as_bytes()


def test_readers_are_judged_by_shape() -> None:
    assert is_media_reader(InMemoryMediaReader(b""))
    assert is_media_reader(Awaited())
    assert not is_media_reader(InMemoryMediaReader)
    assert not is_media_reader(b"bytes")
    reader = InMemoryMediaReader(b"")
    assert require_media_reader(reader) is reader
    with pytest.raises(NotAMediaReader) as raised:
        require_media_reader(object())
    assert (raised.value.code, raised.value.status, raised.value.fatal) == ("E_NOT_A_MEDIA_READER", 500, True)


def test_text_and_byte_contracts_are_disjoint() -> None:
    text, raw = InMemoryReader("text"), InMemoryMediaReader(b"bytes")

    assert (is_spool_reader(text), is_media_reader(text)) == (True, False)
    assert (is_spool_reader(raw), is_media_reader(raw)) == (False, True)
    assert not SpooledArtifact.is_spooled_artifact_constructor(Media)


# Factories and tiers.


@pytest.mark.parametrize(
    ("factory", "tier"),
    [
        (Media.user_attachment, "third-party-private"),
        (Media.tool_generated, "first-party"),
        (Media.retrieved_public, "third-party-public"),
        (Media.retrieved_private, "third-party-private"),
    ],
    ids=["user-attachment", "tool-generated", "retrieved-public", "retrieved-private"],
)
@pytest.mark.parametrize(
    ("kind", "hazard"),
    [
        ("image", "opaque-perceptual"),
        ("audio", "opaque-perceptual"),
        ("video", "opaque-perceptual"),
        ("document", "extractable-instructions"),
    ],
)
async def test_factory_sets_tier_and_derives_the_hazard(
    factory: Callable[..., Media], tier: str, kind: Any, hazard: str
) -> None:
    made = factory(kind, mime_type="a/b", filename="f", reader=Untouchable(), source="here")

    assert (made.kind, made.trust_tier, made.modality_hazard, made.source) == (kind, tier, hazard, "here")
    assert modality_hazard(kind) == hazard
    with pytest.raises(InvalidInitialMediaValue):
        factory(["image"], mime_type="a/b", filename="f", reader=Untouchable())
    with pytest.raises(InvalidInitialMediaValue):
        factory()
    with pytest.raises(TypeError, match="trust_tier"):
        factory(kind, mime_type="a/b", filename="f", reader=Untouchable(), trust_tier="first-party")


@pytest.mark.parametrize("first", TIERS)
@pytest.mark.parametrize("second", TIERS)
def test_less_trusted_of_two_tiers_wins(first: TrustTier, second: TrustTier) -> None:
    order = ["first-party", "third-party-public", "third-party-private"]

    assert lower_trust_tier(first, second) == order[max(order.index(first), order.index(second))]


# Laziness.


async def test_metadata_never_touch_the_reader() -> None:
    made = media(reader=Untouchable(), id="m-1", stash={"text:caption": ENTRY})
    sourced = media(reader=Untouchable(), id="m-2", source="here")

    metadata = {
        "id": "m-1",
        "kind": "image",
        "mimeType": "image/png",
        "filename": "chart.png",
        "trustTier": "third-party-public",
        "modalityHazard": "opaque-perceptual",
    }
    assert made.to_json() == metadata
    assert sourced.to_json() == {**metadata, "id": "m-2", "source": "here"}
    assert "chart.png" in repr(made)
    assert copy.deepcopy(made) is made


class Server:
    """A real HTTP server on loopback that counts downloads."""

    def __init__(self, port: int, requests: list[str]) -> None:
        self.requests = requests
        self._address = f"http://127.0.0.1:{port}"

    def reader(self, path: str) -> OpenedMediaReader:
        return OpenedMediaReader(lambda: urllib.request.urlopen(f"{self._address}{path}", timeout=5))


@contextmanager
def serving(content: bytes) -> Iterator[Server]:
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_response(200 if self.path == "/chart.png" else 404)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Server(server.server_address[1], requests)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_media_behind_http_are_fetched_only_when_rendered() -> None:
    content, records, events = b"\x89PNG" + bytes(range(256)), list[Any](), list[TurnEvent]()

    with serving(content) as server, anyio.fail_after(10):
        chart = media(reader=server.reader("/chart.png"))
        tool = Tool(
            name="draw",
            description="d",
            input_schema=Schema({"type": "object"}),
            handler=lambda args, ctx, meta: [chart],
            artifact_constructor=lambda: SpooledArtifact,
        )

        async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
            records.append(await settle_call(ctx, reporter, ProposedCall("c1", "draw"), spool=InMemoryStore()))
            ctx.ack()

        await dispatch(
            raw={"system_prompt": "p", "tools": [tool]},
            executor=execute,
            hooks={"*": events.append},
            observers={"*": events.append},
        )
        described = [event.to_dict() for event in events]
        metadata = chart.to_json()
        assert records[0].results[0] is chart
        assert server.requests == []

        _, block = await openai_blocks(chart, nonce="n")
        assert block["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(content).decode()}"
        assert server.requests == ["/chart.png"]

        assert await chart.as_bytes() == content
        assert server.requests == ["/chart.png"] * 2

    assert described
    assert metadata["filename"] == "chart.png"
    assert await chart.byte_length() is None


async def test_answer_that_is_no_success_raises_on_read() -> None:
    with serving(b"not found") as server:
        missing = media(reader=server.reader("/missing.png"))

        with pytest.raises(HTTPError, match="404") as raised:
            await missing.as_bytes()

        raised.value.close()
