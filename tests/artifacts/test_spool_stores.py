"""Byte stores and readers: what they store, what they refuse, and how they handle damage on disk."""

import asyncio
import io
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.artifacts.indexed_reader import BLOCK
from gateway.artifacts.spool_stores import (
    FileReader,
    FileStore,
    InMemoryReader,
    InMemoryStore,
    from_handle,
    to_bytes,
    to_handle,
)
from gateway.errors import ArtifactGone, NoReaderResolver, ReaderNotDescribable
from gateway.model.tools.artifact import ByteStore, is_spool_reader

pytestmark = pytest.mark.anyio

HOSTILE_IDS = [
    "../../x",
    "/etc/passwd",
    "",
    ".",
    "..",
    "a/b",
    "a\\b",
    "nul\0byte",
    "x" * 10_000,
    "\ud800",
    "\ud801",
    "\ufffd",
    "é",
    "e\u0301",
    "😀",
    "CON",
    "a.bytes",
    "*",
    "incoming",
    "line\nfeed",
    "Case",
    "case",
]


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ByteStore:
    return InMemoryStore() if request.param == "memory" else FileStore(tmp_path / "spool")


def files_under(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def only_file(folder: Path, pattern: str) -> Path:
    (path,) = folder.rglob(pattern)
    return path


async def read_text(store: ByteStore, id: str) -> str:
    reader = await store.read(id)
    assert reader is not None
    text: str = reader.read_all()
    return text


async def test_what_is_written_can_be_read(store: ByteStore) -> None:
    written = await store.write("id", "a\nb")

    assert written.read_all() == "a\nb"
    assert await read_text(store, "id") == "a\nb"


async def test_unknown_id_is_none(store: ByteStore) -> None:
    assert await store.read("id") is None
    assert await store.delete("id") is False


async def test_rewriting_keeps_earlier_readers_on_the_old_bytes(store: ByteStore) -> None:
    readers = [await store.write("id", f"version {number}\n" * (number + 1)) for number in range(12)]

    assert await read_text(store, "id") == "version 11\n" * 12
    for number, reader in enumerate(readers):
        assert reader.read_all() == f"version {number}\n" * (number + 1)
        assert reader.line_count() == number + 2


async def test_deleted_id_is_gone(store: ByteStore) -> None:
    await store.write("id", "one")
    await store.write("id", "two")
    await store.write("other", "three")

    assert await store.delete("id") is True
    assert await store.read("id") is None
    assert await store.delete("id") is False
    assert await read_text(store, "other") == "three"


async def test_id_may_be_written_again_after_deletion(store: ByteStore) -> None:
    await store.write("id", "one")
    await store.delete("id")

    await store.write("id", "two")

    assert await read_text(store, "id") == "two"


async def test_ids_are_kept_apart_whatever_they_look_like(store: ByteStore) -> None:
    for number, id in enumerate(HOSTILE_IDS):
        await store.write(id, f"content {number}")

    for number, id in enumerate(HOSTILE_IDS):
        assert await read_text(store, id) == f"content {number}"
    for id in HOSTILE_IDS:
        assert await store.delete(id)


async def test_hostile_id_stays_inside_the_root(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "spool")

    for id in HOSTILE_IDS:
        await store.write(id, "x")

    assert {path.name for path in tmp_path.iterdir()} == {"spool"}
    assert all(path.is_relative_to(tmp_path / "spool") for path in files_under(tmp_path))
    assert all(len(path.name) < 80 for path in files_under(tmp_path))


async def chunks(*parts: Any) -> AsyncIterator[Any]:
    for part in parts:
        yield part


class AsyncFile:
    """A source whose read() is a coroutine, like that of an upload."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    async def read(self, size: int) -> bytes:
        await asyncio.sleep(0)
        return self._file.read(size)


LARGE = b"0123456789\n" * 200_000

SOURCES: dict[str, tuple[Callable[[], Any], bytes]] = {
    "str": (lambda: "é\n", "é\n".encode()),
    "bytes": (lambda: b"\xff\n", b"\xff\n"),
    "bytearray": (lambda: bytearray(b"ab"), b"ab"),
    "memoryview": (lambda: memoryview(b"abcd")[::2], b"ac"),
    "half a pair": (lambda: "a\ud800", b"a\xef\xbf\xbd"),
    "empty str": (lambda: "", b""),
    "empty bytes": (lambda: b"", b""),
    "large bytes": (lambda: LARGE, LARGE),
    "list": (lambda: ["a", b"b", bytearray(b"c"), memoryview(b"d")], b"abcd"),
    "empty list": (list, b""),
    "generator": (lambda: (f"{number}\n" for number in range(3)), b"0\n1\n2\n"),
    "large chunks": (lambda: [LARGE, b"x", LARGE], LARGE + b"x" + LARGE),
    "async generator": (lambda: chunks("a", b"b", "é"), "abé".encode()),
    "empty async generator": (chunks, b""),
    "binary file": (lambda: io.BytesIO(LARGE), LARGE),
    "text file": (lambda: io.StringIO("é\n" * 10), "é\n".encode() * 10),
    "async file": (lambda: AsyncFile(LARGE), LARGE),
}


@pytest.mark.parametrize(("source", "data"), SOURCES.values(), ids=SOURCES)
async def test_content_may_come_in_many_shapes(
    store: ByteStore, source: Callable[[], Any], data: bytes, tmp_path: Path
) -> None:
    reader = await store.write("id", source())

    assert reader.byte_length() == len(data)
    assert reader.line_count() == (data.count(b"\n") + 1 if data else 0)
    assert reader.read_all() == data.decode("utf-8", "replace")
    if isinstance(store, FileStore):
        assert only_file(tmp_path, "*.bytes").read_bytes() == data


async def test_open_file_may_be_written(store: ByteStore, tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(LARGE)

    with path.open("rb") as file:
        reader = await store.write("id", file)

    assert reader.byte_length() == len(LARGE)


def failing() -> Iterator[bytes]:
    yield LARGE
    yield b"half"
    raise OSError("the source broke")


async def failing_later() -> AsyncIterator[bytes]:
    yield b"half"
    await asyncio.sleep(0)
    raise OSError("the source broke")


class FailingFile:
    def read(self, size: int) -> bytes:
        raise OSError("the source broke")


@pytest.mark.parametrize("source", [failing, failing_later, FailingFile])
async def test_failing_stream_leaves_nothing_behind(
    store: ByteStore, source: Callable[[], Any], tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="the source broke"):
        await store.write("id", source())

    assert await store.read("id") is None
    assert files_under(tmp_path) == []
    assert await store.delete("id") is False


async def test_failing_rewrite_keeps_what_was_there(store: ByteStore) -> None:
    await store.write("id", "old")

    with pytest.raises(OSError, match="the source broke"):
        await store.write("id", failing())

    assert await read_text(store, "id") == "old"


async def test_cancelled_write_leaves_nothing_behind(store: ByteStore, tmp_path: Path) -> None:
    reached = anyio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield LARGE
        reached.set()
        await anyio.sleep_forever()

    task = asyncio.ensure_future(store.write("id", endless()))
    with anyio.fail_after(60):
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert await store.read("id") is None
    assert files_under(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not NoneType"),
        (5, "not int"),
        (1.5, "not float"),
        (object(), "not object"),
        ({"a": 1}, "not dict"),
        ({"a"}, "not set"),
        (frozenset({"a"}), "not frozenset"),
        ([1, 2], "not int"),
        (range(3), "not int"),
        (["a", None], "not NoneType"),
        ([["nested"]], "not list"),
        (len, "not builtin_function_or_method"),
    ],
    ids=range(12),
)
async def test_content_of_a_wrong_type_is_refused(store: ByteStore, content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=message):
        await store.write("id", content)

    assert await store.read("id") is None
    assert files_under(tmp_path) == []


async def test_stream_with_a_wrong_chunk_is_refused(store: ByteStore, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="spooled content must be text or bytes, not int"):
        await store.write("id", chunks("a", 5))
    assert files_under(tmp_path) == []


async def test_concurrent_writers_of_one_id_both_succeed(store: ByteStore, tmp_path: Path) -> None:
    first_may_end = anyio.Event()
    readers: dict[str, Any] = {}

    async def slow() -> AsyncIterator[str]:
        yield "slow "
        await first_may_end.wait()
        yield "writer"

    async def write(name: str, content: Any) -> None:
        readers[name] = await store.write("id", content)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, "slow", slow())
            await anyio.wait_all_tasks_blocked()
            await write("quick", "quick writer")
            assert await read_text(store, "id") == "quick writer"
            first_may_end.set()

    assert readers["slow"].read_all() == "slow writer"
    assert readers["quick"].read_all() == "quick writer"
    assert await read_text(store, "id") == "slow writer"
    assert len(list(tmp_path.rglob("*.bytes"))) in (0, 2)


async def test_many_writers_of_one_id_lose_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    readers: list[FileReader] = []

    async def write(number: int) -> None:
        readers.append(await FileStore(tmp_path).write("id", [f"writer {number}\n"] * 20))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(write, number)

    assert {reader.line(0) for reader in readers} == {f"writer {number}" for number in range(20)}
    assert (await read_text(store, "id")).startswith("writer ")


async def test_id_deleted_while_written_is_there_afterwards(store: ByteStore) -> None:
    may_end = anyio.Event()
    await store.write("id", "old")

    async def slow() -> AsyncIterator[str]:
        yield "new"
        await may_end.wait()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.write, "id", slow())
            await anyio.wait_all_tasks_blocked()
            assert await store.delete("id") is True
            may_end.set()

    assert await read_text(store, "id") == "new"


async def test_reader_of_a_deleted_file_states_that_it_is_gone(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    reader = await store.write("id", "a\nb")
    await store.delete("id")

    for query in (reader.read_all, lambda: reader.line(0), lambda: list(reader.lines(1, 2))):
        with pytest.raises(ArtifactGone):
            query()


async def test_reader_of_a_deleted_file_never_shows_newer_bytes(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    reader = await store.write("id", "old\nbytes")
    await store.delete("id")
    await store.write("id", "new\nbytes")

    with pytest.raises(ArtifactGone):
        reader.read_all()


async def test_delete_leaves_no_file_behind(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for number in range(3):
        await store.write("id", f"version {number}")

    await store.delete("id")

    assert files_under(tmp_path) == []


async def test_delete_spares_what_it_did_not_write(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.write("id", "a")
    foreign = only_file(tmp_path, "*.bytes").with_name("notes.txt")
    foreign.write_text("mine")

    assert await store.delete("id") is True
    assert foreign.read_text() == "mine"


async def test_file_cut_short_is_not_answered_from(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    reader = await store.write("id", "a\n" * BLOCK)
    os.truncate(only_file(tmp_path, "*.bytes"), 10)

    with pytest.raises(ArtifactGone, match="truncated"):
        reader.read_all()
    with pytest.raises(ArtifactGone, match="truncated"):
        list(reader.lines(0, 100))


async def test_new_reader_uses_the_stored_index(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.write("id", "a\nb\n" * BLOCK)
    path = only_file(tmp_path, "*.bytes")
    path.write_bytes(b"x" * path.stat().st_size)

    reader = await store.read("id")

    assert reader is not None
    assert reader.line_count() == 2 * BLOCK + 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"garbage"),
        lambda path: path.write_bytes(path.read_bytes()[:-8]),
        lambda path: path.write_bytes(path.read_bytes() + bytes(8)),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
        lambda path: path.write_bytes(path.read_bytes()[:24] + b"\x01" + path.read_bytes()[25:]),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["missing", "empty", "garbage", "short", "long", "zeros", "header", "body", "folder"],
)
async def test_damaged_index_is_rebuilt(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    store = FileStore(tmp_path)
    content = "a\nbb\n\nccc" * (2 * BLOCK)
    await store.write("id", content)

    damage(only_file(tmp_path, "*.lines"))
    reader = await store.read("id")

    assert reader is not None
    lines = content.split("\n")
    assert reader.line_count() == len(lines)
    assert list(reader.lines(len(lines) - 4, len(lines))) == lines[-4:]


async def test_index_of_another_content_is_rebuilt(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.write("one", "a\nb")
    index = only_file(tmp_path, "*.lines").read_bytes()
    await store.delete("one")
    await store.write("two", "a\nb\nc\nd")

    only_file(tmp_path, "*.lines").write_bytes(index)

    reader = await store.read("two")
    assert reader is not None
    assert reader.line_count() == 4


async def test_file_store_survives_a_restart(tmp_path: Path) -> None:
    await FileStore(tmp_path).write("id", "old")
    await FileStore(str(tmp_path)).write("id", "a\nb")

    assert await read_text(FileStore(tmp_path), "id") == "a\nb"


async def test_leftover_of_a_crash_belongs_to_no_id(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.write("id", "a")
    (tmp_path / "incoming" / "leftover").write_bytes(b"half")
    only_file(tmp_path, "*.lines").with_name("00000007-leftover.lines").write_bytes(b"half")

    assert await read_text(store, "id") == "a"
    assert await store.delete("id") is True
    assert [path.name for path in files_under(tmp_path)] == ["leftover"]


async def test_file_reader_is_found_again_by_its_handle(tmp_path: Path) -> None:
    reader = await FileStore(tmp_path).write("id", "a\nb")

    handle = to_handle(reader)
    again = from_handle(handle, {"file": FileReader})

    assert handle["tag"] == "file"
    assert again.read_all() == "a\nb"


async def test_handle_is_good_in_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reader = await FileStore("spool").write("id", "a")

    monkeypatch.chdir("/")

    assert reader.read_all() == "a"
    assert Path(to_handle(reader)["locator"]).is_absolute()


async def test_handle_of_a_deleted_file_states_that_it_is_gone(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    handle = to_handle(await store.write("id", "a"))
    await store.delete("id")

    with pytest.raises(ArtifactGone):
        from_handle(handle, {"file": FileReader})


def test_reader_without_describe_cannot_be_persisted() -> None:
    with pytest.raises(ReaderNotDescribable, match="InMemoryReader"):
        to_handle(InMemoryReader("a"))


@pytest.mark.parametrize("handle", [{}, {"tag": "s3", "locator": "x"}, {"tag": None}, {"tag": ["file"]}], ids=repr)
def test_handle_without_a_resolver_is_refused(handle: dict[str, Any]) -> None:
    with pytest.raises(NoReaderResolver):
        from_handle(handle, {"file": FileReader})


def test_resolver_gets_the_locator() -> None:
    assert from_handle({"tag": "row", "locator": 5}, {"row": lambda locator: locator + 1}) == 6
    assert from_handle({"tag": "row"}, {"row": lambda locator: locator}) is None


class Duck:
    def line(self, index: int) -> None: ...

    def byte_length(self) -> None: ...

    def line_count(self) -> None: ...

    read_all: Any = None


def test_spool_reader_is_known_by_its_methods() -> None:
    assert is_spool_reader(InMemoryReader(""))
    assert not is_spool_reader(Duck())
    assert not is_spool_reader(None)
    assert not is_spool_reader("text")

    duck = Duck()
    duck.read_all = lambda: ""

    assert is_spool_reader(duck)


def test_as_bytes_refuses_other_types() -> None:
    with pytest.raises(TypeError, match="spooled content must be text or bytes, not list"):
        to_bytes([b"a"])  # type: ignore[arg-type] # the tested case


def test_in_memory_reader_keeps_its_own_bytes() -> None:
    source = bytearray(b"a\nb")
    reader = InMemoryReader(source)

    source[0] = ord("z")

    assert reader.read_all() == "a\nb"


@pytest.mark.parametrize(("faults", "is_written"), [(9, True), (10, False)])
async def test_folder_that_is_removed_between_two_steps_is_made_again(
    faults: int, is_written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, mkdir = [FileExistsError(), FileNotFoundError()] * 5, Path.mkdir
    del left[faults:]

    def made(path: Path, *args: Any, **options: Any) -> None:
        if path.name != "incoming" and "incoming" not in path.parts and left:
            raise left.pop()
        mkdir(path, *args, **options)

    store = FileStore(tmp_path)
    await store.write("other", "x")
    monkeypatch.setattr(Path, "mkdir", made)
    if is_written:
        await store.write("id", "text")
        assert await read_text(store, "id") == "text"
    else:
        with pytest.raises(OSError):  # noqa: PT011 - one of the two
            await store.write("id", "text")
