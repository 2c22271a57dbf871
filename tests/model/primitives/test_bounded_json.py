"""The number of values in a JSON text, counted before any of them is built."""

import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.primitives.json_fingerprint import (
    DEFAULT_VALUES,
    TooManyValues,
    check_values,
    read_json,
    run_in_json_thread,
    set_value_limit,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.text('",[]{}:\\ \n')
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=40,
)


def values_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values_of, inner))


def is_within(content: bytes | str, most: int) -> bool:
    try:
        check_values(content, most)
    except TooManyValues:
        return False
    return True


@given(JSON, st.booleans(), st.integers(0, 3))
def test_count_is_exact(value: Any, compact: bool, blanks: int) -> None:
    text = orjson.dumps(value) if compact else json.dumps(value, indent=blanks).encode()
    exact = values_of(value)

    assert is_within(text, exact)
    assert is_within(text.decode(), exact)
    # two bytes of the text are worth a value, so shorter texts pass without counting
    padded = text + b" " * (2 * exact)
    assert is_within(padded, exact)
    assert not is_within(padded, exact - 1)
    assert not is_within(padded.decode(), exact - 1)


def test_count_is_exact_wherever_a_text_is_cut() -> None:
    rng = random.Random(7)
    atoms = [
        "[]",
        "{}",
        "[ ]",
        '""',
        '"\\\\"',
        '"\\"[,"',
        '"é"',
        "1",
        '{"a":[]}',
        '["x"]',
        "[[]]",
        '{"\\\\\\"":1}',
        "null",
    ]
    for _ in range(10):
        items = [each + " " * rng.randrange(3) for each in rng.choices(atoms, k=20_000)]
        text = f"[{','.join(items)}]" + " " * 200_000
        exact = values_of(json.loads(text))
        for content in (text, text.encode()):
            assert is_within(content, exact)
            assert not is_within(content, exact - 1)


BOMBS = {
    "arrays": b"[" + b"[]," * 1_400_000 + b"[]]",
    "objects": b"[" + b"{}," * 1_400_000 + b"{}]",
    "numbers": b"[" + b"1," * 2_000_000 + b"1]",
    "texts": b"[" + b'"",' * 1_400_000 + b'""]',
    "members": b"{" + b'"":1,' * 800_000 + b'"":1}',
    "nested": b"[" * 4_000_000,
    "nested objects": b'{"":' * 1_000_000,
    "spaced": b"[" + b"[ ] , " * 700_000 + b"[]]",
    "unclosed": b"[" + b"1," * 2_000_000,
    "after an escape": b'["\\\\",' + b"[]," * 1_400_000 + b"[]]",
    "after an escaped quote": b'["\\"",' + b"[]," * 1_400_000 + b"[]]",
    "beside a long text": b'["' + b"a" * 2_000_000 + b'",' + b"1," * 1_000_000 + b"1]",
}


@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS)
def test_too_many_values_are_refused(content: bytes) -> None:
    with pytest.raises(TooManyValues, match="more than 50000 values"):
        read_json(content)


LONG = {
    "commas in a text": b'["' + b",[{" * 1_000_000 + b'"]',
    "escaped quotes": b'["' + b'\\",' * 1_000_000 + b'"]',
    "escaped backslashes": b'["' + b"\\\\," * 1_000_000 + b'"]',
    "as many as allowed": b"[" + b'"[,]",' * (DEFAULT_VALUES - 2) + b"1]",
    "half as many objects": b"[" + b'{"a":1} ,' * (DEFAULT_VALUES // 2 - 1) + b"{}]",
    "empty containers": b"[" + b"[],{ }," * (DEFAULT_VALUES // 2 - 1) + b"1]",
}


@pytest.mark.parametrize("content", LONG.values(), ids=LONG)
def test_long_texts_of_few_values_are_read(content: bytes) -> None:
    assert read_json(content) == json.loads(content)
    assert read_json(content.decode()) == json.loads(content)


@pytest.fixture
def narrow() -> Iterator[None]:
    set_value_limit(1000)
    yield
    set_value_limit(DEFAULT_VALUES)


@pytest.mark.usefixtures("narrow")
def test_bound_is_that_of_the_process_unless_a_reader_has_its_own() -> None:
    content = b"[" + b"1," * 1500 + b"1]"
    with pytest.raises(TooManyValues, match="more than 1000 values"):
        read_json(content)
    assert len(read_json(content, 2000)) == 1501


def test_what_is_not_json_is_left_to_the_parser() -> None:
    with pytest.raises(orjson.JSONDecodeError):
        read_json(b"[" + b" " * 200_000)


@pytest.mark.anyio
async def test_large_texts_are_read_one_after_the_other_in_a_thread_of_their_own() -> None:
    first, second = await run_in_json_thread(threading.get_ident), await run_in_json_thread(threading.get_ident)

    assert first == second != threading.get_ident()
    with pytest.raises(TooManyValues):
        await run_in_json_thread(read_json, BOMBS["arrays"])
