"""Open ears: clients that want to hear when the list of tools changes, each on a stream of its own."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from gateway.serving.service import Service
from gateway.web.edge import Receive
from gateway.web.mcp.ladder import ModernRequest
from gateway.web.mcp.messages import notification_bytes, result_bytes
from gateway.web.mcp.protocol import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    META_SUBSCRIPTION,
    ProtocolError,
)
from gateway.web.mcp.replies import Presence
from gateway.web.mcp.responses import json_error
from gateway.web.mcp.streams import Send, Stream, end_stream, start_stream
from gateway.web.mcp.tasks import require_tasks

MOST_LISTENERS: Final = 10_000


class Listening:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._closing: set[Callable[[], None]] = set()

    async def listen(self, request: ModernRequest, receive: Receive, send: Send) -> None:
        """Stream until the client goes or the server stops. Raises before anything is sent."""
        wanted = _wanted(request)
        if not request.headers.accepts("text/event-stream"):
            await json_error(send, 406, INVALID_REQUEST, "the client must accept text/event-stream", id=request.id)
            return
        if len(self._closing) >= MOST_LISTENERS:
            raise ProtocolError(INTERNAL_ERROR, "too many clients listen already")
        meta = {META_SUBSCRIPTION: request.id}
        honoured = {"toolsListChanged": True} if wanted.get("toolsListChanged") is True else {}
        stream = Stream()
        changed = notification_bytes("notifications/tools/list_changed", {"_meta": meta})
        over = result_bytes(request.id, orjson.dumps({"resultType": "complete", "_meta": meta}))
        acknowledged = {"notifications": honoured, "_meta": meta}
        stream.put(notification_bytes("notifications/subscriptions/acknowledged", acknowledged))

        def tell() -> None:
            stream.put(changed)

        def close() -> None:
            stream.put(over, final=True)

        self._closing.add(close)
        if honoured:
            self._service.on_change.add(tell)
        presence = Presence(receive, stream.release)
        try:
            await start_stream(send)
            await stream.pump(send, stream.take())
            await end_stream(send)
        finally:
            presence.stop()
            self._service.on_change.discard(tell)
            self._closing.discard(close)

    def close(self) -> None:
        for close in tuple(self._closing):
            close()


def _wanted(request: ModernRequest) -> Mapping[str, Any]:
    wanted = request.params.get("notifications")
    if not isinstance(wanted, dict):
        raise ProtocolError(INVALID_PARAMS, "params.notifications is an object")
    if wanted.get("taskIds"):  # none of them is acknowledged: who wants to know looks
        require_tasks(request.capabilities)
    return wanted
