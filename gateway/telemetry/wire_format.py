"""Spans and log records as OTLP bytes. A few fields of protobuf, written directly: every call makes two or three of
them, and what does not change from one call to the next is encoded once.

It knows the field numbers of `opentelemetry.proto`, which never change, and nothing of what is told.
"""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Final

Value = str | bool | int | float | Sequence[str]

SERVER: Final = 2
CLIENT: Final = 3
INTERNAL: Final = 1
INFO: Final = 9
WARN: Final = 13

_SAMPLED: Final = 0x1
_KNOWS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200
_ERROR: Final = b"\x7a\x02\x18\x02"

_SPAN: Final = Struct("<2s16s2s8s1sB1sQ1sQ2sI")
_LOG: Final = Struct("<1sQ1sQ1sB2s16s2s8s1sI")
_LINK: Final = Struct("<2s16s2s8s1sI")
_DOUBLE: Final = Struct("<1sd")
_SMALL: Final = tuple(bytes([number]) for number in range(128))
_LARGE: Final = 1 << 64
_SMALL_NUMBERS: Final = 1_024
_MOST_KNOWN: Final = 8_192


def varint(number: int) -> bytes:
    if number < 128:
        return _SMALL[number]
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def delimited(tag: bytes, content: bytes) -> bytes:
    return tag + varint(len(content)) + content


def text(value: str, limit: int) -> bytes:
    return (value if len(value) <= limit else value[:limit]).encode("utf-8", "replace")


class Attributes:
    """Encodes attributes; texts are cut at `limit` characters. Each begins with `tag`: that of spans, or none, and then
    `of_span` and `of_log` make them parts of either signal.
    """

    def __init__(self, limit: int, *, tag: bytes = b"") -> None:
        self.limit = limit
        self._tag = tag
        self._heads: dict[tuple[str, int], bytes] = {}
        self._numbers: dict[tuple[str, int], bytes] = {}
        self._flags: dict[tuple[str, int], bytes] = {}

    def encoded(self, key: str, value: Value) -> bytes:
        """One attribute with its length before it."""
        if type(value) is str:
            content = (value if len(value) <= self.limit else value[: self.limit]).encode("utf-8", "replace")
            # What stands before a text depends on its length alone, and most texts are ids and hashes.
            head = self._heads.get((key, len(content)))
            return (self._head(key, len(content)) if head is None else head) + content
        if type(value) is int:
            known = self._numbers.get((key, value))
            return self._number(key, value) if known is None else known
        if type(value) is bool:
            known = self._flags.get((key, value))
            return self._flag(key, value) if known is None else known
        return self._tag + _attribute(key, _other(value, self.limit))

    def _head(self, key: str, size: int) -> bytes:
        told = b"\x0a" + varint(size)
        named = delimited(b"\x0a", key.encode()) + b"\x12" + varint(len(told) + size) + told
        return _kept(self._heads, (key, size), self._tag + varint(len(named) + size) + named)

    def _number(self, key: str, value: int) -> bytes:
        found = self._tag + _attribute(key, b"\x18" + varint(value if value >= 0 else value + _LARGE))
        return _kept(self._numbers, (key, value), found) if 0 <= value < _SMALL_NUMBERS else found

    def _flag(self, key: str, value: bool) -> bytes:
        found = self._tag + _attribute(key, b"\x10\x01" if value else b"\x10\x00")
        return _kept(self._flags, (key, value), found)

    def all(self, values: Mapping[str, Value]) -> tuple[bytes, ...]:
        return tuple(self.encoded(key, value) for key, value in values.items())


def _attribute(key: str, value: bytes) -> bytes:
    content = delimited(b"\x0a", key.encode()) + delimited(b"\x12", value)
    return varint(len(content)) + content


def _other(value: Value, limit: int) -> bytes:
    if isinstance(value, float):
        return _DOUBLE.pack(b"\x21", value)
    assert isinstance(value, Sequence)  # noqa: S101 - there is nothing else
    texts = (delimited(b"\x0a", text(each, limit)) for each in value)
    return delimited(b"\x2a", b"".join(delimited(b"\x0a", each) for each in texts))


def _kept(known: dict[tuple[str, int], bytes], key: tuple[str, int], encoded: bytes) -> bytes:
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known[key] = encoded
    return encoded


OF_SPAN: Final = b"\x4a"


def of_span(attributes: Iterable[bytes]) -> bytes:
    return b"".join([OF_SPAN + each for each in attributes])


def of_log(attributes: Iterable[bytes]) -> bytes:
    return b"".join([b"\x32" + each for each in attributes])


def link(trace_id: bytes, span_id: bytes) -> bytes:
    return b"\x6a\x21" + _LINK.pack(b"\x0a\x10", trace_id, b"\x12\x08", span_id, b"\x35", _KNOWS_REMOTE | _IS_REMOTE)


def span(
    trace_id: bytes,
    span_id: bytes,
    *,
    parent: bytes,
    is_remote: bool,
    state: str,
    name: bytes,
    kind: int,
    times: tuple[int, int],
    rest: bytes,
    is_error: bool,
) -> bytes:
    """As one of many. `name` is encoded already, and so is `rest`: attributes and links."""
    flags = _SAMPLED | _KNOWS_REMOTE | (_IS_REMOTE if is_remote else 0)
    ids = (b"\x0a\x10", trace_id, b"\x12\x08", span_id)
    head = _SPAN.pack(*ids, b"\x30", kind, b"\x39", times[0], b"\x41", times[1], b"\x85\x01", flags)
    content = b"".join(
        (
            head,
            b"\x22\x08" + parent if parent else b"",
            delimited(b"\x1a", state.encode()) if state else b"",
            name,
            rest,
            _ERROR if is_error else b"",
        )
    )
    return delimited(b"\x12", content)


def span_name(name: str, limit: int) -> bytes:
    return delimited(b"\x2a", text(name, limit))


def log_record(
    name: bytes, body: bytes, *, trace_id: bytes, span_id: bytes, at: int, severity: int, attributes: bytes
) -> bytes:
    """As one of many. What was seen had happened right then."""
    times = (b"\x09", at, b"\x59", at)
    head = _LOG.pack(*times, b"\x10", severity, b"\x4a\x10", trace_id, b"\x52\x08", span_id, b"\x45", _SAMPLED)
    return delimited(b"\x12", b"".join((head, name, body, attributes)))


def event_name(name: str) -> bytes:
    return delimited(b"\x62", name.encode())


def event_body(words: str, limit: int) -> bytes:
    return delimited(b"\x2a", delimited(b"\x0a", text(words, limit)))


class Envelope:
    """What stands around many spans or log records: who sends them, and by which conventions."""

    def __init__(self, resource: Sequence[bytes], *, scope: str, version: str, schema_url: str) -> None:
        self._resource = delimited(b"\x0a", b"".join(b"\x0a" + each for each in resource))
        named = delimited(b"\x0a", scope.encode()) + delimited(b"\x12", version.encode())
        self._scope = delimited(b"\x0a", named)
        self._schema = delimited(b"\x1a", schema_url.encode())

    def around(self, items: Sequence[bytes]) -> bytes:
        """A whole request to a collector."""
        scoped = delimited(b"\x12", self._scope + b"".join(items) + self._schema)
        return delimited(b"\x0a", self._resource + scoped + self._schema)
