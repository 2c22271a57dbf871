"""Turns: opened, looked at, called in, followed and ended. Only by whoever opened them."""

from collections.abc import Awaitable
from typing import Any
from urllib.parse import quote

from gateway.core.prompt import assemble_prompt
from gateway.core.rendering import Renderer
from gateway.errors import GatewayError, RecordConflict, UnknownTurn
from gateway.serving.course import Course
from gateway.serving.settled import Settled
from gateway.serving.turns import Turn
from gateway.web.problems import Response
from gateway.web.rest.answers import NO_STORE, answer, bare
from gateway.web.rest.asking import Asked
from gateway.web.rest.calls import arguments, call_answer, idempotency_key
from gateway.web.rest.catalogues import PROTOCOL, catalogue_for, tools_answer
from gateway.web.rest.operations import Rest
from gateway.web.rest.refusals import TurnOver
from gateway.web.rest.shapes import turn_data
from gateway.web.rest.streams import event_stream


async def open_turn(rest: Rest, asked: Asked) -> Response:
    catalogue = catalogue_for(rest.service, asked.principal, asked.body["catalogue"])
    turn = await rest.service.turns.open(asked.principal, catalogue.name, stash=asked.body.get("stash"))
    rest.logs.of(turn.buses)  # from now on, so that whoever follows it later misses nothing
    location = f"/v1/turns/{quote(turn.id, safe='')}"
    return answer(turn_data(turn), status=201, headers={b"location": location.encode()})


async def get_turn(rest: Rest, asked: Asked) -> Response:
    return answer(turn_data(await seen_turn(rest, asked)))


async def list_turn_tools(rest: Rest, asked: Asked) -> Response:
    turn = await _whole(rest, asked)
    catalogue = catalogue_for(rest.service, asked.principal, turn.stored.catalogue)
    return tools_answer(rest, asked, catalogue, rest.service.listed(asked.principal, catalogue.name, turn=turn))


async def call_in_turn(rest: Rest, asked: Asked) -> Response:
    turn = await _open(rest, asked)
    rest.logs.of(turn.buses)  # another process may have opened it
    given, key = await arguments(asked), idempotency_key(asked)

    def call(course: Course) -> Awaitable[Settled]:
        return rest.service.call(
            turn,
            asked.body["tool"],
            given,
            id=asked.body.get("id"),
            key=key,
            request=asked.seen,
            course=course,
        )

    return await call_answer(rest, call)


async def end_turn(rest: Rest, asked: Asked) -> Response:
    """Ending it again the same way changes nothing; ending it another way is refused."""
    ending = asked.body["as"]
    turn = await seen_turn(rest, asked)
    if turn.stored.ended_at is None:
        try:
            await rest.service.turns.end(turn, ending)
        except RecordConflict:  # another request was faster
            turn = await seen_turn(rest, asked)
    if turn.stored.ending != ending:
        raise TurnOver(f"the turn has ended already, with {turn.stored.ending}")
    return answer(turn_data(turn))


async def render_turn(rest: Rest, asked: Asked) -> Response:
    """The messages of the next model request, in the shape of chat completions."""
    turn = await _whole(rest, asked)
    await rest.service.read_turn(turn)
    renderer = Renderer(unsupported_media="fallback-stash")
    return answer({"messages": await assemble_prompt(turn.ctx, renderer)})


async def follow_turn(rest: Rest, asked: Asked) -> Response:
    """Events as they happen. A turn that has ended has none: 204 tells clients not to come back."""
    turn = await seen_turn(rest, asked)
    if turn.stored.ended_at is not None:
        return bare(204, NO_STORE)
    if not rest.service.may_read_turn(turn):
        raise UnknownTurn()
    log = rest.logs.of(turn.buses)

    async def may_read() -> bool:
        try:
            seen = await seen_turn(rest, asked)
            return seen.buses is turn.buses and rest.service.may_read_turn(seen)
        except GatewayError:
            return False

    return event_stream(log, last_event_id=asked.header(b"last-event-id"), may_read=may_read)


async def seen_turn(rest: Rest, asked: Asked) -> Turn:
    """The caller's own turn, open or ended. Those of catalogues that are not published here are unknown."""
    turn = await rest.service.turns.look_at(asked.principal, asked.path["turn"])
    catalogue: Any = rest.service.published.snapshot.catalogues.get(turn.stored.catalogue)
    if catalogue is None or PROTOCOL not in catalogue.protocols:
        raise UnknownTurn()
    return turn


async def _whole(rest: Rest, asked: Asked) -> Turn:
    """With the calls that other processes have made in it."""
    turn = await seen_turn(rest, asked)
    if rest.catch_up is not None and turn.stored.ended_at is None:
        await rest.catch_up(turn)
    return turn


async def _open(rest: Rest, asked: Asked) -> Turn:
    turn = await seen_turn(rest, asked)
    if turn.stored.ended_at is not None:
        raise TurnOver(help="open another one")
    return turn
