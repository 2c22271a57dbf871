"""Spans and log records as OTLP bytes. It writes protobuf fields directly, because every call has two or three of them,
and caches whatever does not change between calls.

It knows the field numbers of `opentelemetry.proto`, which never change, and nothing about the meaning of attributes.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeVar

from opentelemetry.trace import SpanKind

if TYPE_CHECKING:
    from gateway.telemetry.gateway_span import GatewaySpan

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST: Final = 16_384


class BoundedCache(dict[K, V]):
    """Values made by `make` on first access, by key. A full cache is cleared: frequent keys soon return."""

    __slots__ = ("_make", "_most")

    def __init__(self, make: Callable[[K], V], *, most: int = _MOST) -> None:
        super().__init__()
        self._make = make
        self._most = most

    def __missing__(self, key: K) -> V:
        if len(self) >= self._most:
            self.clear()
        found = self[key] = self._make(key)
        return found


INFO: Final = 9
WARN: Final = 13

_SAMPLED: Final = 0x1
_KNOWS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200

_ROOT: Final = Struct("<2s16s2s8s3sQ1sQ6s")
_CHILD: Final = Struct("<2s16s2s8s3sQ1sQ8s8s")
_LOG: Final = Struct("<1sQ1sQ4s16s2s8s5s")
_LINK: Final = Struct("<2s16s2s8s1sI")
_DOUBLE: Final = Struct("<1sd")
_EVENT: Final = Struct("<1sQ")
_LARGE: Final = 1 << 64

_SMALL: Final = tuple(bytes([number]) for number in range(128))
_KINDS: Final = {kind: bytes([0x30, kind.value + 1, 0x39]) for kind in SpanKind}
_ALONE: Final = b"\x85\x01" + (_SAMPLED | _KNOWS_REMOTE).to_bytes(4, "little")
_BELOW: Final = _ALONE + b"\x22\x08"
_BELOW_ANOTHER: Final = b"\x85\x01" + (_SAMPLED | _KNOWS_REMOTE | _IS_REMOTE).to_bytes(4, "little") + b"\x22\x08"
"""Flags of a span without a parent, with a local one, and with a remote one."""
_SEVERITIES: Final = tuple(bytes([0x10, severity, 0x4A, 0x10]) for severity in range(25))

FAILED: Final = b"\x7a\x02\x18\x02"
"""Status of a failed span."""


def varint(number: int) -> bytes:
    if number < 128:
        return _SMALL[number]
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def delimit(tag: bytes, content: bytes) -> bytes:
    return tag + varint(len(content)) + content


def text(value: str, limit: int) -> bytes:
    if len(value) > limit:
        value = value[:limit]
    return value.encode() if value.isascii() else value.encode("utf-8", "replace")


def head(key: str, size: int, tag: bytes) -> bytes:
    """Return the bytes before the text of an attribute, which depend only on the length of the text."""
    value = b"\x0a" + varint(size)
    named = delimit(b"\x0a", key.encode()) + b"\x12" + varint(len(value) + size) + value
    return tag + varint(len(named) + size) + named


class Attributes:
    """Encodes attributes as fields with a `tag`; texts are truncated to `limit` characters."""

    def __init__(self, tag: bytes, limit: int) -> None:
        self._tag = tag
        self._limit = limit
        self._heads: BoundedCache[tuple[str, int], bytes] = BoundedCache(lambda of: head(*of, tag))
        self._numbers: BoundedCache[tuple[str, int], bytes] = BoundedCache(lambda of: tag + _attribute(*_number(*of)))
        self._flags: BoundedCache[tuple[str, bool], bytes] = BoundedCache(
            lambda of: tag + _attribute(of[0], _other(of[1], limit))
        )

    def list_fields(self, values: Mapping[str, Any]) -> list[bytes]:
        heads, limit, found = self._heads, self._limit, []
        for key, value in values.items():
            kind = type(value)
            if kind is str:
                size = len(value)
                if size <= limit and value.isascii():
                    found.append(heads[key, size] + value.encode())
                else:
                    content = text(value, limit)
                    found.append(heads[key, len(content)] + content)
            elif kind is int:
                found.append(self._numbers[key, value])
            elif kind is bool:
                found.append(self._flags[key, value])
            else:
                found.append(self._tag + _attribute(key, _other(value, limit)))
        return found

    def join(self, values: Mapping[str, Any]) -> bytes:
        return b"".join(self.list_fields(values))


def _number(key: str, value: int) -> tuple[str, bytes]:
    return key, b"\x18" + varint(value if value >= 0 else value + _LARGE)


def _attribute(key: str, value: bytes) -> bytes:
    content = delimit(b"\x0a", key.encode()) + delimit(b"\x12", value)
    return varint(len(content)) + content


def _other(value: Any, limit: int) -> bytes:
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, float):
        return _DOUBLE.pack(b"\x21", value)
    assert isinstance(value, Sequence)  # noqa: S101 - there is nothing else
    texts = (delimit(b"\x0a", text(str(each), limit)) for each in value)
    return delimit(b"\x2a", b"".join(delimit(b"\x0a", each) for each in texts))


OF_SPAN: Final = b"\x4a"
OF_EVENT: Final = b"\x1a"
OF_LOG: Final = b"\x32"
OF_RESOURCE: Final = b"\x0a"
"""Tags of attributes."""


def link(trace_id: bytes, span_id: bytes) -> bytes:
    return b"\x6a\x21" + _LINK.pack(b"\x0a\x10", trace_id, b"\x12\x08", span_id, b"\x35", _KNOWS_REMOTE | _IS_REMOTE)


def span_event(name: str, at: int, attributes: bytes, limit: int) -> bytes:
    return delimit(b"\x5a", _EVENT.pack(b"\x09", at) + delimit(b"\x12", text(name, limit)) + attributes)


class StepEvent:
    """Encodes events with one name, whose only attribute that differs is a number of seconds."""

    def __init__(self, name: str, duration: str, attributes: Mapping[str, Any]) -> None:
        number = OF_EVENT + _attribute(duration, _DOUBLE.pack(b"\x21", 0.0))
        event = span_event(name, 0, number + Attributes(OF_EVENT, 1 << 10).join(attributes), 1 << 10)
        first = event.index(b"\x09") + 1
        second = event.index(number) + len(number) - 8
        self._before, self._between, self._after = event[:first], event[first + 8 : second], event[second + 8 :]
        self._pack = Struct(f"<{first}sQ{second - first - 8}sd{len(self._after)}s").pack

    def encode(self, since: int, until: int) -> bytes:
        return self._pack(self._before, since, self._between, (until - since) / 1e9, self._after)


def span_head(of: "GatewaySpan") -> bytes:
    """Return the first fields of a span. Its name, attributes, events, links and status follow."""
    kind, since, until = _KINDS[of._kind], of._start_time, of._end_time
    if of.above:
        flags = _BELOW_ANOTHER if of.is_remote else _BELOW
        head = _CHILD.pack(b"\x0a\x10", of.trace, b"\x12\x08", of.span, kind, since, b"\x41", until, flags, of.above)
    else:
        head = _ROOT.pack(b"\x0a\x10", of.trace, b"\x12\x08", of.span, kind, since, b"\x41", until, _ALONE)
    return head + delimit(b"\x1a", of.state.encode()) if of.state else head


def span_name(name: str, limit: int) -> bytes:
    return delimit(b"\x2a", text(name, limit))


def log_head(trace_id: bytes, span_id: bytes, at: int, severity: int) -> bytes:
    """Return the first fields of a log record, observed when it happened. Its name, body and attributes follow."""
    return _LOG.pack(b"\x09", at, b"\x59", at, _SEVERITIES[severity], trace_id, b"\x52\x08", span_id, b"\x45\x01\0\0\0")


def event_name(name: str) -> bytes:
    return delimit(b"\x62", name.encode())


def event_body(words: str, limit: int) -> bytes:
    return delimit(b"\x2a", delimit(b"\x0a", text(words, limit)))


def _before_item(size: int) -> bytes:
    return b"\x12" + varint(size)


_BEFORE_ITEMS: Final = BoundedCache(_before_item)


class OtlpEnvelope:
    """The message around a batch of spans or log records, with resource, scope and version of the conventions."""

    def __init__(self, resource: Mapping[str, Any], *, scope: str, version: str, schema_url: str) -> None:
        self._resource = delimit(b"\x0a", Attributes(OF_RESOURCE, 1 << 20).join(resource))
        named = delimit(b"\x0a", scope.encode()) + delimit(b"\x12", version.encode())
        self._scope = delimit(b"\x0a", named)
        self._schema = delimit(b"\x1a", schema_url.encode())

    def around(self, items: Sequence[bytes]) -> bytes:
        """Return a whole request to a collector. Lengths are summed up first, so that its bytes are copied once."""
        before = map(_BEFORE_ITEMS.__getitem__, map(len, items))
        scoped = [self._scope, *chain.from_iterable(zip(before, items, strict=True)), self._schema]
        size = sum(map(len, scoped))
        of_scope = b"\x12" + varint(size)
        of_whole = b"\x0a" + varint(len(self._resource) + len(of_scope) + size + len(self._schema))
        return b"".join([of_whole, self._resource, of_scope, *scoped, self._schema])
