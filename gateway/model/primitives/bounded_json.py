"""JSON from outside, with a bounded number of values that is checked before any value is built.

A small array takes two bytes in a request and a hundred in memory, so a limit in bytes does not bound the memory. Every
reader of JSON from outside counts values here first. One separate thread parses large texts, one after the other: the
parser holds the interpreter lock, and several parsers at once would block the event loop until all of them are done.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final, ParamSpec, TypeVar

import orjson

DEFAULT_VALUES: Final = 50_000
LARGE: Final = 64 << 10
"""Texts of at least this many bytes are parsed outside of the event loop."""

_WINDOW: Final = 32 << 10
"""Bytes that are examined in one step, which takes a few milliseconds at most."""
_BLANKS: Final = b" \t\r\n"

P = ParamSpec("P")
Result = TypeVar("Result")


class TooManyValues(ValueError):
    """A text has more values than allowed. None of them was built."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the JSON has more than {most} values")
        self.most = most


class _Bound:
    most = DEFAULT_VALUES


def set_value_limit(most: int) -> None:
    """Set the limit of this process for texts that are read without a limit of their own."""
    _Bound.most = most


def check_values(content: bytes | str, most: int | None = None) -> None:
    """Count texts, numbers, literals, lists and objects, but no keys. Raises `TooManyValues`.

    Invalid JSON is counted up to the error; the parser refuses it there.
    """
    most = _Bound.most if most is None else most
    if len(content) < 2 * most:  # a value needs two bytes, one of them a separator
        return
    at_most = 1
    for window in _windows(content):
        at_most += window.count(b",") + window.count(b"[") + window.count(b"{")
        if at_most > most:
            break
    else:
        return
    if _count_values(content, most) > most:
        raise TooManyValues(most)


def read_json(content: bytes | str, most: int | None = None) -> Any:
    """Parse JSON. Raises `TooManyValues`, and `orjson.JSONDecodeError` for invalid JSON."""
    check_values(content, most)
    return orjson.loads(content)


async def run_in_json_thread(read: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """Call `read` in the thread that parses large texts."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_reader(), lambda: read(*args, **kwargs))


@cache
def _reader() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="json")


def _windows(content: bytes | str) -> Iterator[bytes]:
    for start in range(0, len(content), _WINDOW):
        piece = content[start : start + _WINDOW]
        yield piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece


def _count_values(content: bytes | str, most: int) -> int:
    """Return the number of values, or any above `most`: the root, one per comma, one per container with members."""
    found = 1
    is_in_text = has_just_opened = False
    rest = b""
    for piece in _windows(content):
        window = rest + piece
        is_cut = (len(window) - len(window.rstrip(b"\\"))) % 2 == 1  # the window ends within an escape
        rest = window[-1:] if is_cut else b""
        plain = (window[:-1] if is_cut else window).replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = plain.split(b'"')
        outside = parts[is_in_text::2]
        is_in_text ^= len(parts) % 2 == 0
        if is_in_text:
            outside.append(b"")  # the unfinished text is a value
        skeleton = b'"'.join(outside).translate(None, _BLANKS)
        opened = skeleton.count(b"[") + skeleton.count(b"{")
        found += skeleton.count(b",") + opened - skeleton.count(b"[]") - skeleton.count(b"{}")
        if skeleton:
            found -= has_just_opened and skeleton[0] in b"]}"
            has_just_opened = skeleton[-1] in b"[{"
        if found > most + 1:  # the container that opens at the end of this window may be empty
            break
    return found
