"""Calling tools: one by one, each in a turn of its own, or in the turn that an earlier call gave the handle of."""

import json
from typing import Any, Final

from gateway.web.bodies import NotStrictJson, TooManyBodyValues, strict_json
from gateway.web.problems import Response
from gateway.web.rest.answers import answer
from gateway.web.rest.asking import Asked
from gateway.web.rest.catalogues import catalogue_for
from gateway.web.rest.operations import Rest
from gateway.web.rest.refusals import InvalidRequest, TooManyJsonValues
from gateway.web.rest.shapes import called

MAX_KEY: Final = 255


async def call_tool(rest: Rest, asked: Asked) -> Response:
    catalogue = catalogue_for(rest.service, asked.principal, asked.path["catalogue"])
    settled = await rest.service.call_alone(
        asked.principal,
        catalogue.name,
        asked.path["name"],
        arguments(asked),
        handle=asked.body.get("turn"),
        key=idempotency_key(asked),
        request=asked.seen,
    )
    return called_answer(await called(settled, rest.contents))


def called_answer(body: dict[str, Any]) -> Response:
    """202 for a call that waits for people: it has not run, and runs once it is sent again after they agreed."""
    if "pending" in body:
        return answer(body, status=202, headers={b"retry-after": b"%d" % body["pending"]["retryAfter"]})
    if "limited" in body:  # a result like any other that is an error; the header is for programs that wait by it
        return answer(body, headers={b"retry-after": b"%d" % body["limited"]["retryAfter"]})
    return answer(body, headers={b"idempotency-replayed": b"true"} if "replayed" in body else None)


def arguments(asked: Asked) -> dict[str, Any] | str | None:
    """The arguments as they were sent. Text that is JSON must be as strict as the body; what is none is the call's."""
    given: dict[str, Any] | str | None = asked.body.get("arguments")
    if not isinstance(given, str):
        return given
    try:
        strict_json(given.encode())
    except TooManyBodyValues as error:
        raise TooManyJsonValues(f"the arguments cannot be read: {error}") from None
    except NotStrictJson as error:
        if _is_json(given):
            raise InvalidRequest(f"the arguments cannot be read: {error}") from None
    return given


def idempotency_key(asked: Asked) -> str | None:
    key = asked.header(b"idempotency-key")
    if key is not None and not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise InvalidRequest(f"the header Idempotency-Key has 1 to {MAX_KEY} printable ASCII characters")
    return key


def _is_json(text: str) -> bool:
    """Whether a lenient reader would take it: one of them reads the arguments of the call."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
