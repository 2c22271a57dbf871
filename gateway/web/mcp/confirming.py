"""Calls that their caller has to confirm, where there are no sessions: the question goes out with a sealed state, and
any process that is given the answer with that state makes the call.

Nothing waits meanwhile. The state says which turn the question was asked in, about which action, until when, and which
idempotency key the answer has: however often it is sent, the call is made once.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from secrets import token_urlsafe
from typing import Any, Final

import orjson

from gateway.approvals.confirming import seal_of_question
from gateway.core.events import now
from gateway.errors import UnknownTurn
from gateway.governance.principals import Principal
from gateway.serving.confirming import CONFIRM
from gateway.serving.current import Holding, Question
from gateway.serving.service import Service
from gateway.serving.settled import Settled
from gateway.web.mcp.exchanges import checked_answer
from gateway.web.mcp.parking import input_required, invalid_state
from gateway.web.mcp.protocol import INVALID_PARAMS, ProtocolError

_MARK: Final = "confirm."
_SEAL: Final = 32
_LONGEST: Final = 4_096
_ELICITED: Final = Question.form("", {})


@dataclass(frozen=True, slots=True)
class Answered:
    """A caller's answer: the turn to go on in, the key that makes the call once, and how it is held now."""

    turn_id: str
    key: str
    holding: Holding


class Confirmations:
    """Of one catalogue."""

    def __init__(self, service: Service, catalogue: str) -> None:
        self._service = service
        self._catalogue = catalogue

    def asked(self, settled: Settled, bound: bytes) -> bytes:
        """The question of a call that has to be confirmed, with the state that its answer comes back with."""
        wanted = settled.unconfirmed
        assert wanted is not None, "asked without a question"  # noqa: S101 - only such calls come here
        parts = [settled.turn.id, wanted.digest, int(wanted.until.timestamp()), token_urlsafe(18)]
        content = orjson.dumps(parts)
        seal = seal_of_question(settled.turn.turn_secret, bound + content)
        state = _MARK + base64.urlsafe_b64encode(seal + content).decode()
        return input_required({CONFIRM: wanted.question}, state)

    async def answered(
        self, state: str, bound: bytes, given: Any, *, principal: Principal, holding: Holding
    ) -> Answered:
        """What was answered. One error for everything that can be wrong with a state; a malformed answer is another.

        Without an answer, the call is made as if nobody had been asked, and asks again.
        """
        seal, content = _opened(state)
        turn_id, digest, until, nonce = _parts(content)
        try:
            turn = await self._service.turns.find(principal, turn_id, catalogue=self._catalogue)
        except UnknownTurn:
            raise invalid_state() from None
        # constant time: whoever tries seals learns nothing from how long it took
        if not hmac.compare_digest(seal, seal_of_question(turn.turn_secret, bound + content)):
            raise invalid_state()
        if now() >= datetime.fromtimestamp(until, UTC):
            raise invalid_state()
        return Answered(turn_id, f"confirm-{nonce}", _with_answer(holding, digest, given))


def is_of_confirmation(state: Any) -> bool:
    return isinstance(state, str) and state.startswith(_MARK)


def _with_answer(holding: Holding, digest: str, given: Any) -> Holding:
    if given is not None and not isinstance(given, Mapping):
        raise ProtocolError(INVALID_PARAMS, "inputResponses is an object")
    if not given or CONFIRM not in given:
        return holding
    answer = checked_answer(_ELICITED, given[CONFIRM])
    return replace(holding, answer=answer["action"], about=digest)


def _opened(state: str) -> tuple[bytes, bytes]:
    if len(state) > _LONGEST:
        raise invalid_state()
    try:
        opened = base64.b64decode(state.removeprefix(_MARK).encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise invalid_state() from None
    return opened[:_SEAL], opened[_SEAL:]


def _parts(content: bytes) -> tuple[str, str, int, str]:
    """Whoever wrote it, its shape is looked at before anything in it is used."""
    try:
        turn_id, digest, until, nonce = orjson.loads(content)
    except (orjson.JSONDecodeError, ValueError, TypeError):
        raise invalid_state() from None
    if not all(isinstance(each, str) for each in (turn_id, digest, nonce)) or type(until) is not int:
        raise invalid_state()
    return turn_id, digest, until, nonce
