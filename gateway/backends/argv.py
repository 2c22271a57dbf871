"""The arguments of a program: a fixed list in which whole entries are replaced by values of a call.

No value is ever split, joined or read by a shell. One that a program could take for an option is refused wherever it
stands: not every program stops reading options at `--`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.governance.ports import BackendFailed

MAX_ARGUMENT: Final = 100_000
"""Bytes; the kernel's own limit is a little higher and would give a worse message."""

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")


def argv_problems(argv: tuple[str, ...]) -> Iterator[str]:
    if not argv or not argv[0].startswith("/") or ".." in argv[0].split("/") or _PLACEHOLDER.search(argv[0]):
        yield "the program is a fixed absolute path"
    for entry in argv:
        if "\x00" in entry:
            yield "an argument cannot hold NUL"
        if _PLACEHOLDER.search(entry) and not _PLACEHOLDER.fullmatch(entry):
            yield f"{entry!r} is not a whole placeholder"


def filled(argv: tuple[str, ...], args: Mapping[str, Any], *, schema: Mapping[str, Any]) -> list[str]:
    """The template with each placeholder replaced by one value. Raises `BackendFailed` for a value that cannot be."""
    return [
        _text(found[1], args.get(found[1]), schema=schema) if (found := _PLACEHOLDER.fullmatch(entry)) else entry
        for entry in argv
    ]


def _text(name: str, value: Any, *, schema: Mapping[str, Any]) -> str:
    if value is None:
        raise _invalid(name, "was not given")
    if not isinstance(value, str | int | float):
        raise _invalid(name, "is not a text, a number or a boolean")
    text = value if isinstance(value, str) else json.dumps(value)
    if "\x00" in text:
        raise _invalid(name, "holds NUL")
    if text.startswith("-") and not _is_listed(value, schema, name=name):
        raise _invalid(name, "starts with '-' and could be taken for an option")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _invalid(name, "holds half a character") from None
    if size > MAX_ARGUMENT:
        raise _invalid(name, f"has more than {MAX_ARGUMENT} bytes")
    return text


def _is_listed(value: Any, schema: Mapping[str, Any], *, name: str) -> bool:
    """Whether the tool's own schema spells out exactly this value."""
    properties = schema.get("properties")
    of_argument = properties.get(name) if isinstance(properties, Mapping) else None
    if not isinstance(of_argument, Mapping):
        return False
    listed = [*(of_argument.get("enum") or ()), *([of_argument["const"]] if "const" in of_argument else [])]
    return any(type(item) is type(value) and item == value for item in listed)


def _invalid(name: str, what: str) -> BackendFailed:
    return BackendFailed("invalid", f"argument {name!r} {what}")
