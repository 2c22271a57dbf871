"""Whose call a request goes on with: the state of a call that waits for an answer of its caller says where it runs.

Before the sealed part of a state stands, in the open, which gateway and which worker has the call:
`<digest of the gateway's address>.w<number of the worker>.<sealed>`; where there is only one of a kind, its part is
left out.
"""

import asyncio
import re
from collections import deque
from contextlib import suppress
from typing import Any, Final

from gateway.web.edge import Receive, Scope

_LOOKED_INTO: Final = 256 << 10
_WITHIN: Final = 10.0
"""Seconds in which a body comes whose state is looked for."""
OF_GATEWAY: Final = re.compile(rb'"requestState"\s*:\s*"([0-9a-f]{12})\.')
"""In JSON such a quote is no part of a text. Whoever writes it elsewhere is answered by another gateway, no more."""
OF_WORKER: Final = re.compile(rb'"requestState"\s*:\s*"(?:[0-9a-f]{12}\.)?w([0-9]{1,3})\.')


def home_of(gateway: str, worker: int | None) -> str:
    """What a process writes before its states. `gateway` is empty where there is only one."""
    return ".".join([*([gateway] if gateway else []), *([] if worker is None else [f"w{worker}"])])


def may_have_a_state(scope: Scope) -> bool:
    """Requests without a session, of a length that is told and not large: no others are looked into."""
    if scope["method"] != "POST" or not scope["path"].endswith("/mcp"):
        return False
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return length.isdigit() and len(length) < 7 and int(length) <= _LOOKED_INTO


async def owner_in_body(receive: Receive, pattern: re.Pattern[bytes]) -> tuple[bytes | None, Receive]:
    """Whose call the request goes on with, if it does, and how to read the request from its beginning."""
    heard: deque[Any] = deque()
    body = b""
    more = True
    with suppress(TimeoutError):  # the application waits for the rest, and answers when that does not come either
        async with asyncio.timeout(_WITHIN):
            while more and len(body) <= _LOOKED_INTO:
                message = await receive()
                heard.append(message)
                body += message.get("body", b"")
                more = message["type"] == "http.request" and message.get("more_body", False)
    found = pattern.search(body)

    async def again() -> Any:
        return heard.popleft() if heard else await receive()

    return None if found is None else found[1], again
