"""The tasks extension: held calls of clients that would rather come back than wait.

A caller that declares it and whose call is held gets a task at once. Its id is a name and no right: whoever is not its
caller, and whoever made it up, is told the same.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from gateway.governance.principals import Principal
from gateway.serving.held_tasks import HeldTask, HeldTasks, UnknownTask
from gateway.serving.settled import Settled
from gateway.web.mcp.ladder import ModernRequest
from gateway.web.mcp.protocol import INVALID_PARAMS, MISSING_CAPABILITY, ProtocolError
from gateway.web.mcp.results import dumped
from gateway.web.mcp.serving import Served, protocol_error

TASKS: Final = "io.modelcontextprotocol/tasks"
METHODS: Final = ("tasks/get", "tasks/update", "tasks/cancel")
LONGEST_ID: Final = 2_048

_REQUIRED: Final[Mapping[str, Any]] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}


class Tasks:
    def __init__(self, served: Served, held: HeldTasks) -> None:
        self._served = served
        self._held = held

    def created(self, settled: Settled) -> bytes:
        """The task of a call that waits for people. It is on record: any process can be asked for it."""
        return dumped({**self._task(self._held.begun(settled)), "resultType": "task"})

    async def answer(self, request: ModernRequest, principal: Principal) -> bytes:
        require_tasks(request.capabilities)
        id = request.params.get("taskId")
        if not isinstance(id, str) or len(id) > LONGEST_ID:
            raise _unknown()
        try:
            match request.method:
                case "tasks/get":
                    return await self._told(await self._held.look(id, principal))
                case "tasks/cancel":
                    await self._held.cancel(id, principal)
                case _:
                    await self._updated(id, request.params, principal)
        except UnknownTask:
            raise _unknown() from None
        return dumped({"resultType": "complete", "_meta": self._served.meta})

    async def _updated(self, id: str, params: Mapping[str, Any], principal: Principal) -> None:
        """No task asks for anything, so that every answer is one to nothing, and is ignored."""
        if not isinstance(params.get("inputResponses", {}), dict):
            raise ProtocolError(INVALID_PARAMS, "params.inputResponses is an object")
        await self._held.known(id, principal)

    async def _told(self, task: HeldTask) -> bytes:
        told: dict[str, Any] = {**self._task(task), "resultType": "complete"}
        if task.error is not None:
            error = protocol_error(task.error)
            data = {} if error.data is None else {"data": error.data}
            told["error"] = {"code": error.code, "message": error.message, **data}
        if task.settled is None:
            return dumped(told)
        return b'%b,"result":%b}' % (dumped(told)[:-1], await self._served.told_later(task.settled))

    def _task(self, task: HeldTask) -> dict[str, Any]:
        told: dict[str, Any] = {
            "taskId": task.id,
            "status": task.status,
            "statusMessage": task.message,
            "createdAt": _moment(task.created_at),
            "lastUpdatedAt": _moment(task.updated_at),
            "ttlMs": int((task.ends - task.created_at).total_seconds() * 1000),
            "_meta": self._served.meta,
        }
        return told if task.look_again is None else {**told, "pollIntervalMs": task.look_again * 1000}


def declares_tasks(capabilities: Mapping[str, Any]) -> bool:
    extensions = capabilities.get("extensions")
    return isinstance(extensions, dict) and isinstance(extensions.get(TASKS), dict)


def require_tasks(capabilities: Mapping[str, Any]) -> None:
    """Raises unless the client says on this very request that it knows tasks."""
    if not declares_tasks(capabilities):
        raise ProtocolError(MISSING_CAPABILITY, "the client did not say that it knows tasks", dict(_REQUIRED))


def _unknown() -> ProtocolError:
    return ProtocolError(INVALID_PARAMS, "there is no such task")


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
