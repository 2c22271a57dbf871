"""Both JSON readers against generated texts, compared with the standard library under the same rules.

`FUZZ_CASES` sets the number of cases, `FUZZ_SEED` the seed.
"""

import json
import math
import os
import random
import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.backends.result_conversion import parse_json_result
from gateway.mcp.messages import decode_now
from gateway.model.primitives.json_fingerprint import (
    DEFAULT_VALUES,
    LARGE,
    TooManyValues,
    check_values,
    set_value_limit,
)
from gateway.model.tools.backend import BackendError
from gateway.server.http.json_body import MAX_DEPTH, NotStrictJson, strict_json

CASES = int(os.environ.get("FUZZ_CASES", "6000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
MOST = 1000
"""The limit of values in these tests: most generated texts are short."""

GROWTH = 64 << 20

ATOMS = [
    "0",
    "-0",
    "1",
    "-1",
    "1.5",
    "1e5",
    "1E-400",
    "1e400",
    "-1e400",
    "01",
    "+1",
    "1.",
    ".5",
    "1e",
    "NaN",
    "Infinity",
]
ATOMS += ["18446744073709551615", "18446744073709551616", "-9223372036854775808", "-9223372036854775809", "9" * 400]
ATOMS += [
    "true",
    "false",
    "null",
    "True",
    "nul",
    '""',
    '"a"',
    '"\\u0061"',
    '"\\ud83d\\ude00"',
    '"\\ud800"',
    '"\\udc00"',
]
ATOMS += [
    '"\\x"',
    '"\\',
    '"\n"',
    '"\x7f"',
    '"é"',
    '"\\u00"',
    '"\\/"',
    "'a'",
    "//",
    "/**/",
    "\ufeff",
    "\x00",
    "\xa0",
    "１",
]
KEYS = ['"a"', '"b"', '"\\u0061"', '"a\\u0000"', '""', '"é"', '"e\\u0301"', "a", "1", '"__proto__"']
BLANKS = ["", "", "", " ", "\n", "\t", "\r", "\x0c", "\u2028"]


class Generated:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def texts(self, count: int) -> Iterator[bytes]:
        rng = self._rng
        for _ in range(count):
            text = self._value(rng.choice([0, 1, 2, 3, 4])).encode()
            match rng.randrange(30):
                case 0 | 3 | 4:
                    text = self._garbled(text)
                case 1:
                    text = self._deep(rng.choice([MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 1000])) + text
                case 2:
                    text = self._many(rng.choice([MOST - 2, MOST - 1, MOST, MOST + 1, 40_000]))
            yield text

    def _value(self, depth: int) -> str:
        rng = self._rng
        blank = rng.choice(BLANKS)
        if depth == 0:
            sound = rng.random() < 0.85
            return blank + (
                rng.choice(["0", "1", '"a"', "null", "1.25", '"\\n"', "[]"]) if sound else rng.choice(ATOMS)
            )
        inner = [self._value(depth - 1) for _ in range(rng.randrange(4))]
        if rng.random() < 0.5:
            return f"{blank}[{(blank + ',').join(inner)}{rng.choice([''] * 30 + [',', ']', '}'])}]"
        keys = [rng.choice(KEYS) if rng.random() < 0.2 else f'"k{number}"' for number in range(len(inner))]
        return f"{{{blank}{','.join(f'{key}{blank}:{value}' for key, value in zip(keys, inner, strict=True))}}}{blank}"

    def _garbled(self, text: bytes) -> bytes:
        rng = self._rng
        at = rng.randrange(len(text) + 1)
        return text[:at] + rng.choice([b"", bytes([rng.randrange(256)])]) + text[at + rng.randrange(3) :]

    def _deep(self, levels: int) -> bytes:
        kind = self._rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
        return kind[0] * levels + b"1" + kind[1] * levels

    def _many(self, count: int) -> bytes:
        item = self._rng.choice([b"[]", b"1", b'","', b"{ }", b'"\\"["'])
        return b"[" + b",".join([item] * count) + b"]"


class Refused(Exception):
    """The reference refuses the text."""


def reference(text: bytes) -> Any:
    """Read a text as a request body."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise Refused from None
    check(value, 0)
    if values_of(value) > MOST:
        raise Refused
    return value


def is_small_json(text: bytes) -> bool:
    """Whether the text is JSON with few values; nothing else is ever read."""
    try:
        return values_of(json.loads(text, parse_constant=refuse)) <= MOST
    except (ValueError, RecursionError, Refused):
        return False


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Refused
    return found


def refuse(name: str) -> None:
    raise Refused


def check(value: Any, depth: int) -> None:
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Refused from None
        case float() if math.isinf(value):
            raise Refused
        case int() if not -(1 << 63) <= value < 1 << 64:
            raise Refused
        case dict() | list():
            if depth >= MAX_DEPTH:
                raise Refused
            for each in (*value, *value.values()) if isinstance(value, dict) else value:
                check(each, depth + 1)


def values_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values_of, inner))


@pytest.fixture(autouse=True)
def narrow() -> Iterator[None]:
    set_value_limit(MOST)
    yield
    set_value_limit(DEFAULT_VALUES)


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def outcome(read: Callable[[bytes], Any], text: bytes, refusal: type[Exception]) -> str | None:
    try:
        return repr(read(text))
    except refusal:
        return None


def test_request_reader_reads_what_strict_json_is_and_nothing_else() -> None:
    seen = {True: 0, False: 0}
    before = memory()
    for text in Generated(SEED).texts(CASES):
        found, expected = outcome(strict_json, text, NotStrictJson), outcome(reference, text, Refused)
        assert found == expected, f"seed {SEED}: {text[:500]!r}"
        seen[found is not None] += 1
    assert min(seen.values()) > CASES // 10
    assert memory() - before < GROWTH


def parsed_result(content: bytes) -> Any:
    """Read a text as a tool's result. These texts are short, so nothing is awaited."""
    running = parse_json_result(content)
    try:
        running.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("a short text is read at once")


@pytest.mark.parametrize("read", [decode_now, parsed_result], ids=["message", "result"])
def test_readers_of_what_other_programs_write_read_all_of_it_and_no_more(read: Callable[[bytes], Any]) -> None:
    seen = {True: 0, False: 0}
    before = memory()
    for text in Generated(SEED).texts(CASES):
        if len(text) >= LARGE:  # the bound was checked; such texts are read in another thread
            with pytest.raises(TooManyValues):
                check_values(text)
            continue
        found, expected = outcome(read, text, BackendError), outcome(reference, text, Refused)
        if expected is not None:
            assert found == expected, f"seed {SEED}: {text[:500]!r}"
        elif found is not None:
            assert is_small_json(text), f"seed {SEED}: {text[:500]!r}"
        seen[found is not None] += 1
    assert min(seen.values()) > CASES // 10
    assert memory() - before < GROWTH
