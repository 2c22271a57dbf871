"""Bodies: bounded in bytes and time, and JSON that every reader interprets alike."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.http.json_body import (
    MAX_DEPTH,
    BodyTooLarge,
    BodyTooSlow,
    ClientGone,
    NotStrictJson,
    read_body,
    strict_json,
)

pytestmark = pytest.mark.anyio


def make_receive(*messages: dict[str, Any]) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Deliver the messages, then block."""
    left = list(messages)

    async def receive() -> dict[str, Any]:
        if left:
            return left.pop(0)
        await asyncio.Event().wait()
        raise AssertionError("never comes")

    return receive


def chunk(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_body_in_one_piece_or_many_is_the_same() -> None:
    assert await read_body(make_receive(chunk(b"abc")), limit=3) == b"abc"
    assert await read_body(make_receive(chunk(b"a", more=True), chunk(b"bc")), limit=3) == b"abc"
    assert await read_body(make_receive({"type": "http.request"}), limit=3) == b""


async def test_body_is_refused_with_the_first_byte_too_many_and_the_rest_is_not_waited_for() -> None:
    with pytest.raises(BodyTooLarge):
        await read_body(make_receive(chunk(b"abc", more=True), chunk(b"d", more=True)), limit=3)


async def test_client_that_disconnects_is_a_distinct_error() -> None:
    with pytest.raises(ClientGone):
        await read_body(make_receive(chunk(b"a", more=True), {"type": "http.disconnect"}), limit=3)


async def test_body_that_does_not_come_is_not_waited_for() -> None:
    with pytest.raises(BodyTooSlow):
        await read_body(make_receive(chunk(b"a", more=True)), limit=3, within=0)


ACCEPTED = {
    "empty object": b"{}",
    "blanks": b' \t\r\n{ "a" : [ 1 , 2.50 ] } ',
    "escapes": b'{"\\u0061\\n\\"":"\\ud83d\\ude00"}',
    "NUL as an escape": b'"\\u0000"',
    "same key on two levels": b'{"a":{"a":1}}',
    "largest integers": b"[ 18446744073709551615, -9223372036854775808 ]",
    "minus zero": b"-0",
    "small exponent": b"1E-2",
    "integer as a fraction that is exact": b"[9007199254740992.0, 1.8446744073709551e3, 1e19]",
    "doubles": b"[6.02214076e23, 0.1000000000000000055511151231, 1.7976931348623157e308, 6.853180795900618e+16]",
    "top level text": b'"a"',
    "deep enough": b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
}
REFUSED = {
    "nothing": b"",
    "blanks only": b"  ",
    "two values": b"{}{}",
    "rubbish after": b"{}x",
    "comma at the end of a list": b"[1,]",
    "comma at the end of an object": b'{"a":1,}',
    "single quotes": b"{'a':1}",
    "no quotes": b"{a:1}",
    "comment": b"{}/**/",
    "NaN": b'{"a":NaN}',
    "Infinity": b"[Infinity]",
    "minus Infinity": b"-Infinity",
    "1e400": b'{"a":1e400}',
    "leading zero": b"01",
    "plus": b"+1",
    "bare point": b"1.",
    "hexadecimal": b"0x1",
    "integer of 65 bits": b'{"a":18446744073709551616}',
    "integer below 64 bits": b'{"a":-9223372036854775809}',
    "integer as a fraction that is rounded": b'{"a":9007199254740993.0}',
    "integer with an exponent that is rounded": b'{"a":-9.007199254740993e15}',
    "integer of 10000 digits": b'{"a":' + b"1" * 10_000 + b"}",
    "duplicate key": b'{"a":1,"a":1}',
    "duplicate by escape": b'{"a":1,"\\u0061":2}',
    "duplicate far below": b'[[{"b":{"a":1,"c":2,"a":3}}]]',
    "byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
    "UTF-32": "{}".encode("utf-32-be"),
    "lone high surrogate": b'"\\ud800"',
    "lone low surrogate": b'{"\\udc00":1}',
    "surrogate in UTF-8": b'"\xed\xa0\x80"',
    "broken UTF-8": b'"\xff"',
    "overlong UTF-8": b'"\xc0\xaf"',
    "raw control character": b'"\x00"',
    "raw newline in a text": b'"a\nb"',
    "bad escape": b'"\\x41"',
    "unclosed": b'{"a":[1',
    "wrong bracket": b"[1}",
    "form feed": b"\x0c1",
    "one level too deep": b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    "objects too deep": b'{"a":' * 200 + b"1" + b"}" * 200,
    "nested 100000 times": b"[" * 100_000 + b"]" * 100_000,
    "nested 100000 times, unclosed": b'[{"a":' * 100_000,
}


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED)
def test_json_is_read(body: bytes) -> None:
    assert strict_json(body) == json.loads(body)


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_what_two_readers_could_read_in_two_ways_is_refused_in_one_line(body: bytes) -> None:
    with pytest.raises(NotStrictJson) as refusal:
        strict_json(body)

    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 200


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # characters only: half of a pair is not text
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@given(JSON, st.booleans())
def test_every_value_comes_back_however_it_is_written(value: Any, compact: bool) -> None:
    body = orjson.dumps(value) if compact else json.dumps(value, indent=1).encode()

    assert strict_json(body) == value
