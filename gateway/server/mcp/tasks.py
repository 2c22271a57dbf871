"""The tasks extension: the methods of a client about its held calls.

A caller that declares the extension and whose call is held gets a task at once, and polls instead of waiting. The id of
a task grants no access: another caller's task is reported like one that does not exist.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from gateway.engine import CallOutcome, HeldCall, HeldCalls, UnknownTask
from gateway.mcp import INVALID_PARAMS, MISSING_CAPABILITY, ProtocolError
from gateway.model import Principal
from gateway.server.mcp.call_results import dump_json
from gateway.server.mcp.mcp_request import StatelessRequest
from gateway.server.mcp.mcp_server import McpServer, to_protocol_error

TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"
TASK_METHODS: Final = ("tasks/get", "tasks/update", "tasks/cancel")
MAX_ID: Final = 2_048

_REQUIRED: Final[Mapping[str, Any]] = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}


class TaskMethods:
    def __init__(self, served: McpServer, held: HeldCalls) -> None:
        self._served = served
        self._held = held

    def create(self, settled: CallOutcome) -> bytes:
        """Return the task of a call that waits for approvers. It is stored, so any process can answer for it."""
        return dump_json({**self._task(self._held.create(settled)), "resultType": "task"})

    async def answer(self, request: StatelessRequest, principal: Principal) -> bytes:
        require_tasks(request.capabilities)
        id = request.params.get("taskId")
        if not isinstance(id, str) or len(id) > MAX_ID:
            raise _unknown()
        try:
            match request.method:
                case "tasks/get":
                    return await self._render_status(await self._held.get_status(id, principal))
                case "tasks/cancel":
                    await self._held.cancel(id, principal)
                case _:
                    await self._ignore_update(id, request.params, principal)
        except UnknownTask:
            raise _unknown() from None
        return dump_json({"resultType": "complete", "_meta": self._served.meta})

    async def _ignore_update(self, id: str, params: Mapping[str, Any], principal: Principal) -> None:
        """Check an update and ignore it: tasks ask no questions that it could answer."""
        if not isinstance(params.get("inputResponses", {}), dict):
            raise ProtocolError(INVALID_PARAMS, "params.inputResponses must be an object")
        await self._held.find(id, principal)

    async def _render_status(self, task: HeldCall) -> bytes:
        body: dict[str, Any] = {**self._task(task), "resultType": "complete"}
        if task.error is not None:
            error = to_protocol_error(task.error)
            data = {} if error.data is None else {"data": error.data}
            body["error"] = {"code": error.code, "message": error.message, **data}
        if task.settled is None:
            return dump_json(body)
        return b'%b,"result":%b}' % (dump_json(body)[:-1], await self._served.render_late_result(task.settled))

    def _task(self, task: HeldCall) -> dict[str, Any]:
        body: dict[str, Any] = {
            "taskId": task.id,
            "status": task.status,
            "statusMessage": task.message,
            "createdAt": _moment(task.created_at),
            "lastUpdatedAt": _moment(task.updated_at),
            "ttlMs": int((task.ends - task.created_at).total_seconds() * 1000),
            "_meta": self._served.meta,
        }
        return body if task.look_again is None else {**body, "pollIntervalMs": task.look_again * 1000}


def declares_tasks(capabilities: Mapping[str, Any]) -> bool:
    extensions = capabilities.get("extensions")
    return isinstance(extensions, dict) and isinstance(extensions.get(TASKS_EXTENSION), dict)


def require_tasks(capabilities: Mapping[str, Any]) -> None:
    """Raise `ProtocolError` unless the client declares the tasks extension on this request."""
    if not declares_tasks(capabilities):
        raise ProtocolError(MISSING_CAPABILITY, "the client did not declare the tasks extension", dict(_REQUIRED))


def _unknown() -> ProtocolError:
    return ProtocolError(INVALID_PARAMS, "there is no such task")


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
