"""A modern server, in raw messages, that answers calls with tasks; the arguments decide how a task ends."""

import json
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TASKS = "io.modelcontextprotocol/tasks"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
MODERN = "2026-07-28"
SLOW: dict[str, Any] = {
    "name": "slow",
    "description": "Takes its time.",
    "inputSchema": {"type": "object", "properties": {"how": {"type": "string"}}},
}
WHO = {
    "method": "elicitation/create",
    "params": {
        "message": "Who?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}


class TaskServer:
    """`looks` counts how often a task was polled; `asked` has all requests other than calls."""

    def __init__(self) -> None:
        self.tasks: dict[str, str] = {}
        self.looks: dict[str, int] = {}
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str, str | None]] = []
        self.declared: list[Any] = []

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/mcp", self._answer, methods=["POST"])])

    async def _answer(self, request: Request) -> Response:
        message = json.loads(await request.body())
        method, params, id = message["method"], message.get("params") or {}, message.get("id")
        if method.startswith("tasks/"):
            self.asked.append((method, params["taskId"], request.headers.get("mcp-name")))
        result = self._result(method, params)
        if "error" in result:
            return JSONResponse({"jsonrpc": "2.0", "id": id, "error": result["error"]}, status_code=400)
        return JSONResponse({"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete", **result}})

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "server/discover":
                capabilities: dict[str, Any] = {"tools": {}, "extensions": {TASKS: {}}}
                info = {"name": "tasking", "version": "1.0.0"}
                return {"supportedVersions": [MODERN], "capabilities": capabilities, "serverInfo": info}
            case "tools/list":
                return {"tools": [SLOW]}
            case "tools/call":
                return self._begun(params)
            case "tasks/get":
                return self._task(params["taskId"])
            case "tasks/update":
                self.answers[params["taskId"]] = params["inputResponses"]
                return {}
            case "tasks/cancel":
                self.tasks[params["taskId"]] = "cancelled"
                return {}
        return {"error": {"code": -32601, "message": "Method not found"}}

    def _begun(self, params: dict[str, Any]) -> dict[str, Any]:
        declared = params["_meta"][META_CAPABILITIES]
        self.declared.append(declared)
        if TASKS not in declared.get("extensions", {}):
            data: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            return {"error": {"code": -32021, "message": "it is a task", "data": data}}
        id = f"task ü {len(self.tasks)}"  # a header cannot hold it unencoded
        self.tasks[id] = params["arguments"]["how"]
        named = id if self.tasks[id] != "nameless" else ""
        return {"resultType": "task", "taskId": named, "status": "working", "pollIntervalMs": 0, "ttlMs": 60_000}

    def _task(self, id: str) -> dict[str, Any]:
        self.looks[id] = look = self.looks.get(id, 0) + 1
        task: dict[str, Any] = {"taskId": id, "status": "working", "statusMessage": f"look {look}", "pollIntervalMs": 0}
        done = {"status": "completed", "result": {"content": [{"type": "text", "text": "at last"}]}}
        match self.tasks[id]:
            case "ask" if id not in self.answers:
                return {**task, "status": "input_required", "inputRequests": {"who": WHO}}
            case "ask":
                text = self.answers[id]["who"]["content"]["name"]
                return {**task, "status": "completed", "result": {"content": [{"type": "text", "text": text}]}}
            case "fail":
                return {**task, "status": "failed", "error": {"code": -32000, "message": "out of paper"}}
            case "wrong":
                return {**task, **done, "result": {**done["result"], "isError": True}}  # type: ignore[dict-item]
            case "nonsense":
                return {**task, "status": "asleep"}
            case "empty":
                return {**task, "status": "completed"}
            case "cancelled":
                return {**task, "status": "cancelled"}
            case "work" if look > 2:
                return {**task, **done}
        return task
