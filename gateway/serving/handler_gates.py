"""Gates that handlers open with `ctx.wait_for`: people settle them as they decide any other approval.

The handler waits in this process. The approval is in the store, so that whoever may decide finds it over REST and with
the command line, at any worker, and the decision log has what they said. No rule names the approvers: everybody whom
the policy lets `approve` calls of the tool may decide, but for whoever made the call.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from gateway.approvals.approving import Approvals, approvers_by_policy
from gateway.approvals.deciding import Standing
from gateway.approvals.digests import action_of
from gateway.approvals.refusals import GateRefused, UnknownApproval
from gateway.core.events import Buses, Event, TurnGateOpen
from gateway.core.gates import TurnGate
from gateway.core.schemas import Schema
from gateway.errors import GatewayError, InvalidTurnGateResolution, StorageError, TurnGateTimeout
from gateway.governance.approvals import ApprovalRequest
from gateway.serving.current import ServedCall, serving_now

RULE: Final = "wait_for"
"""What stands in place of a rule's name."""

_LONGEST: Final = timedelta(minutes=15)
"""How long people are asked about a gate that has no timeout."""
_LONGEST_REASON: Final = 1_000
_ANYTHING: Final[Mapping[str, Any]] = {}

_log: Final = logging.getLogger(__name__)


class HandlerGates:
    """Asks for an approval whenever the handler of a served call opens a gate. A gate may be settled otherwise, too."""

    def __init__(self, approvals: Approvals) -> None:
        self._approvals = approvals

    def listen(self, buses: Buses) -> Callable[[], None]:
        """Follow the gates of all turns; returns what ends that."""
        return buses.observability.on(TurnGateOpen.name, self._opened)

    def _opened(self, event: Event) -> Awaitable[None] | None:
        """Called inside the handler that opens the gate, so the current call is the one it waits for."""
        call = serving_now()
        if call is None or not isinstance(event, TurnGateOpen) or not isinstance(event.gate, TurnGate):
            return None
        return self._ask(event.gate, call)

    async def _ask(self, gate: TurnGate, call: ServedCall) -> None:
        if gate.is_settled:
            return
        try:
            request = _request(gate, call)
        except (TypeError, ValueError) as error:
            _log.warning("nobody can be asked about a gate of %s: its payload is not JSON: %s", call.tool, error)
            return
        try:
            standing = await self._approvals.ask([request])
        except GatewayError as error:
            gate.reject(error if isinstance(error, StorageError) else GateRefused(error.message, help=error.help))
            return
        try:
            await self._follow(gate, standing, request.timeout)
        finally:
            await self._withdraw(call, standing)

    async def _follow(self, gate: TurnGate, standing: Standing, within: timedelta) -> None:
        """Settle the gate as people decide, unless something else settles it before."""
        deciding = asyncio.create_task(self._approvals.wait_for_decision(standing, within))
        settling = asyncio.create_task(gate.wait_until_settled())
        try:
            await asyncio.wait({deciding, settling}, return_when=asyncio.FIRST_COMPLETED)
            if deciding.done() and not gate.is_settled:
                _settle(gate, deciding)
        finally:
            for task in (deciding, settling):
                task.cancel()
            await asyncio.wait({deciding, settling})

    async def _withdraw(self, call: ServedCall, standing: Standing) -> None:
        """A late answer finds that the asking is over; what is decided already stays so."""
        with suppress(UnknownApproval, StorageError):
            await self._approvals.withdraw(call.principal, [each.id for each in standing.approvals])


def _request(gate: TurnGate, call: ServedCall) -> ApprovalRequest:
    """Bound to this very gate: its turn, call and id are part of what is approved. Raises if that is not JSON."""
    tool = call.identity or call.tool
    turn_id = gate.turn_id
    action = action_of(
        call.principal,
        catalogue=call.catalogue,
        tool=tool,
        definition=call.definition or "",
        revision=call.revision,
        arguments={
            "arguments": call.args,
            "call": call.id,
            "gate": gate.id,
            "payload": gate.payload,
            "turn": turn_id,
        },
    )
    return ApprovalRequest(
        action,
        call.tool,
        RULE,
        f"the handler of {tool}",
        gate.reason[:_LONGEST_REASON],
        approvers_by_policy(call.catalogue, tool),
        _LONGEST if gate.timeout is None else timedelta(milliseconds=gate.timeout),
        resolution=_resolution(gate),
        turn_id=turn_id,
        call_id=call.id,
        trace=None if call.seen is None else call.seen.traceparent,
    )


def _resolution(gate: TurnGate) -> Mapping[str, Any]:
    """The schema of the answer, where the gate's can be told to other processes; else the gate itself checks it."""
    described = gate.describe().get("schema")
    if not isinstance(described, dict):
        return _ANYTHING
    try:
        Schema(described)
    except ValueError:
        return _ANYTHING
    return described


def _settle(gate: TurnGate, deciding: "asyncio.Task[Standing]") -> None:
    error = deciding.exception()
    if error is not None:
        gate.reject(error if isinstance(error, StorageError) else GateRefused())
        return
    standing = deciding.result()
    if standing.state == "taken":
        said = standing.approvals[0].entries[-1].resolution
        try:
            gate.resolve(None if said is None else json.loads(said))
        except InvalidTurnGateResolution as refused:
            gate.reject(GateRefused(f"the answer to the gate does not fit it: {refused.message}"))
    elif standing.state in ("pending", "expired"):
        if gate.timeout is None:  # else its own timer says so
            gate.reject(TurnGateTimeout())
    else:
        notes = [each.note for each in standing.approvals[0].entries if each.decision == "refuse" and each.note]
        gate.reject(GateRefused(f"an approver refused: {notes[0]!r}" if notes else None))
