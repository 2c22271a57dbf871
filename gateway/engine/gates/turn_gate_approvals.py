"""Gates on which a running handler waits (`ctx.wait_for`): approvers decide them like any other approval.

The handler waits in this process. The approval is in the store, so that approvers find it over REST and with the
command line, at any worker, and the audit log records their decision. No rule names the approvers: everyone the policy
lets `approve` calls of the tool may decide, except the caller.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from gateway.approvals import (
    ApprovalRequest,
    ApprovalService,
    GateRefused,
    HoldStatus,
    UnknownApproval,
    approvers_by_policy,
    make_action,
)
from gateway.engine.call import Call, find_current_call
from gateway.errors import GatewayError, InvalidTurnGateResolution, StorageError, TurnGateTimeout
from gateway.model import EventBuses, Schema, TurnEvent, TurnGate, TurnGateOpen

RULE: Final = "wait_for"
"""Stands in place of a rule's name."""

_LONGEST: Final = timedelta(minutes=15)
"""How long approvers are asked about a gate without a timeout."""
_LONGEST_REASON: Final = 1_000
_ANYTHING: Final[Mapping[str, Any]] = {}

_log: Final = logging.getLogger(__name__)


class HandlerGates:
    """Requests an approval when the handler of a served call opens a gate. A gate may be settled otherwise, too."""

    def __init__(self, approvals: ApprovalService) -> None:
        self._approvals = approvals

    def listen(self, buses: EventBuses) -> Callable[[], None]:
        """Follow the gates of all turns; calling the returned function ends that."""
        return buses.observability.on(TurnGateOpen.name, self._on_open)

    def _on_open(self, event: TurnEvent) -> Awaitable[None] | None:
        """Called inside the handler that opens the gate, so the current call is the one that waits."""
        call = find_current_call()
        if call is None or not isinstance(event, TurnGateOpen) or not isinstance(event.gate, TurnGate):
            return None
        return self._ask(event.gate, call)

    async def _ask(self, gate: TurnGate, call: Call) -> None:
        if gate.is_settled:
            return
        try:
            request = _request(gate, call)
        except (TypeError, ValueError) as error:
            _log.warning("no approver can be asked about a gate of %s: its payload is not JSON: %s", call.tool, error)
            return
        try:
            status = await self._approvals.ask([request])
        except GatewayError as error:
            gate.reject(error if isinstance(error, StorageError) else GateRefused(error.message, help=error.help))
            return
        try:
            await self._follow(gate, status, request.timeout)
        finally:
            await self._withdraw(call, status)

    async def _follow(self, gate: TurnGate, status: HoldStatus, within: timedelta) -> None:
        """Settle the gate as approvers decide, unless it is settled otherwise before."""
        deciding = asyncio.create_task(self._approvals.wait_for_decision(status, within))
        settling = asyncio.create_task(gate.wait_until_settled())
        try:
            await asyncio.wait({deciding, settling}, return_when=asyncio.FIRST_COMPLETED)
            if deciding.done() and not gate.is_settled:
                _settle(gate, deciding)
        finally:
            for task in (deciding, settling):
                task.cancel()
            await asyncio.wait({deciding, settling})

    async def _withdraw(self, call: Call, status: HoldStatus) -> None:
        """Withdraw the request, so that a late vote is refused; decided approvals do not change."""
        with suppress(UnknownApproval, StorageError):
            await self._approvals.withdraw(call.principal, [each.id for each in status.approvals])


def _request(gate: TurnGate, call: Call) -> ApprovalRequest:
    """Return a request bound to this gate: it includes turn, call and gate id. Raise if the payload is not JSON."""
    tool = call.identity or call.tool
    turn_id = gate.turn_id
    action = make_action(
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
    """Return the answer's schema if other processes can use it; otherwise only the gate itself checks the answer."""
    described = gate.describe().get("schema")
    if not isinstance(described, dict):
        return _ANYTHING
    try:
        Schema(described)
    except ValueError:
        return _ANYTHING
    return described


def _settle(gate: TurnGate, deciding: "asyncio.Task[HoldStatus]") -> None:
    error = deciding.exception()
    if error is not None:
        gate.reject(error if isinstance(error, StorageError) else GateRefused())
        return
    status = deciding.result()
    if status.state == "taken":
        resolution = status.approvals[0].entries[-1].resolution
        try:
            gate.resolve(None if resolution is None else json.loads(resolution))
        except InvalidTurnGateResolution as refused:
            gate.reject(GateRefused(f"the answer to the gate does not fit it: {refused.message}"))
    elif status.state in ("pending", "expired"):
        if gate.timeout is None:  # otherwise the gate's own timer rejects it
            gate.reject(TurnGateTimeout())
    else:
        notes = [each.note for each in status.approvals[0].entries if each.decision == "refuse" and each.note]
        gate.reject(GateRefused(f"an approver refused: {notes[0]!r}" if notes else None))
