"""Messages between this process and the one that writes: the length in four bytes, then what `marshal` makes of it."""

import marshal
from typing import Any, Final

_HEAD: Final = 4


def framed(message: Any) -> bytes:
    """Raises `ValueError` for what is not plain: `marshal` takes no subclass of anything."""
    body = marshal.dumps(message)
    return len(body).to_bytes(_HEAD, "big") + body


def unframed(received: bytearray) -> list[Any]:
    """What has arrived whole; it is taken away from what was received."""
    found = []
    start = 0
    while len(received) - start >= _HEAD:
        begin = start + _HEAD
        end = begin + int.from_bytes(received[start:begin], "big")
        if len(received) < end:
            break
        found.append(marshal.loads(received[begin:end]))  # noqa: S302 - from the process at the other end of the pipe
        start = end
    del received[:start]
    return found
