"""Calling tools: one by one, each in a turn of its own, or in the turn that an earlier call gave the handle of."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gateway.serving.claims import MAX_KEY, is_key
from gateway.serving.course import Course, OutcomeLost
from gateway.serving.settled import Settled
from gateway.web.bodies import NotStrictJson, TooManyBodyValues, parsed_strictly
from gateway.web.problems import Response
from gateway.web.rest.answers import answer
from gateway.web.rest.asking import Asked
from gateway.web.rest.catalogues import catalogue_for
from gateway.web.rest.operations import Rest
from gateway.web.rest.refusals import InvalidRequest, TooManyJsonValues
from gateway.web.rest.shapes import called
from gateway.web.rest.statuses import status_of

_log: Final = logging.getLogger(__name__)


async def call_tool(rest: Rest, asked: Asked) -> Response:
    catalogue = catalogue_for(rest.service, asked.principal, asked.path["catalogue"])
    given, key = await arguments(asked), idempotency_key(asked)

    def call(course: Course) -> Awaitable[Settled]:
        return rest.service.call_alone(
            asked.principal,
            catalogue.name,
            asked.path["name"],
            given,
            handle=asked.body.get("turn"),
            key=key,
            request=asked.seen,
            course=course,
        )

    return await call_answer(rest, call)


async def call_answer(rest: Rest, call: Callable[[Course], Awaitable[Settled]]) -> Response:
    """Make a call and answer its record, with the status of its outcome.

    An error that ends the call before its tool began is answered like any other. After that it is a lost outcome: its
    own status might have somebody send the call again.
    """
    course = Course()
    try:
        settled = await call(course)
        body = await called(settled, rest.contents)
    except Exception as error:
        if not course.has_begun or isinstance(error, OutcomeLost):
            raise
        _log.exception("a call has run, and its outcome cannot be shown")
        raise OutcomeLost(course) from error
    status = status_of(settled, body)
    headers = {} if status.retry_after is None else {b"retry-after": b"%d" % status.retry_after}
    if settled.is_replay:
        headers[b"idempotency-replayed"] = b"true"
    return answer(body, status=status.code, headers=headers)


async def arguments(asked: Asked) -> dict[str, Any] | None:
    """The arguments. Text is read as strictly as the body, here and nowhere else; blank text is no arguments."""
    given: dict[str, Any] | str | None = asked.body.get("arguments")
    if not isinstance(given, str):
        return given
    if not given.strip():
        return None
    try:
        read = await parsed_strictly(given.encode())
    except TooManyBodyValues as error:
        raise TooManyJsonValues(f"the arguments cannot be read: {error}") from None
    except NotStrictJson as error:
        raise InvalidRequest(f"the arguments cannot be read: {error}") from None
    if not isinstance(read, dict):
        raise InvalidRequest("the arguments are text, and what it says is not a JSON object")
    return read


def idempotency_key(asked: Asked) -> str | None:
    key = asked.header(b"idempotency-key")
    if key is not None and not is_key(key):
        raise InvalidRequest(f"the header Idempotency-Key has 1 to {MAX_KEY} printable ASCII characters")
    return key
