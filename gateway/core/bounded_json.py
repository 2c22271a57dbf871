"""JSON from outside: the number of its values is bounded, and counted before any of them is built.

A small array takes two bytes on the wire and a hundred in memory, so a bound in bytes says little about what a text
becomes. Every reader of JSON that somebody else wrote counts here first. Large texts are read in one thread of their
own, one after the other: the calls of the parser do not let go of the interpreter, and several of them at once would
keep the event loop waiting for all of them.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final, ParamSpec, TypeVar

import orjson

DEFAULT_VALUES: Final = 50_000
LARGE: Final = 64 << 10
"""Bytes from which on a text is read outside of the event loop."""

_WINDOW: Final = 32 << 10
"""Bytes that are looked at in one step, for a few milliseconds at most."""
_BLANKS: Final = b" \t\r\n"

Given = ParamSpec("Given")
Result = TypeVar("Result")


class TooManyValues(ValueError):
    """A text has more values than are read. None of them was built."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the JSON has more than {most} values")
        self.most = most


class _Bound:
    most = DEFAULT_VALUES


def bound_values(most: int) -> None:
    """Set how many values a text may have in this process, where its reader does not say."""
    _Bound.most = most


def check_values(content: bytes | str, most: int | None = None) -> None:
    """Count texts, numbers, literals, lists and objects, but no keys. Raises `TooManyValues`.

    What is not JSON counts as far as it can be read; the parser refuses it at the same place.
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
    if _counted(content, most) > most:
        raise TooManyValues(most)


def read_json(content: bytes | str, most: int | None = None) -> Any:
    """The value. Raises `TooManyValues`, and `orjson.JSONDecodeError` for what is not JSON."""
    check_values(content, most)
    return orjson.loads(content)


async def read_apart(read: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """Call a function in the thread that reads large texts."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_reader(), lambda: read(*args, **kwargs))


@cache
def _reader() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="json")


def _windows(content: bytes | str) -> Iterator[bytes]:
    for start in range(0, len(content), _WINDOW):
        piece = content[start : start + _WINDOW]
        yield piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece


def _counted(content: bytes | str, most: int) -> int:
    """The exact number, or one that is past `most`: the root, a value per comma, and one per container with members."""
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
            outside.append(b"")  # the text that has begun stands for a value
        bones = b'"'.join(outside).translate(None, _BLANKS)
        opened = bones.count(b"[") + bones.count(b"{")
        found += bones.count(b",") + opened - bones.count(b"[]") - bones.count(b"{}")
        if bones:
            found -= has_just_opened and bones[0] in b"]}"
            has_just_opened = bones[-1] in b"[{"
        if found > most + 1:  # an opening bracket at the end of this window may still turn out to be empty
            break
    return found
