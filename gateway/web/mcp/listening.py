"""Open ears: clients that want to hear when a list or a resource changes, each on a stream of its own."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import orjson

from gateway.errors import Missing
from gateway.governance.ports import BackendFailed
from gateway.governance.principals import Principal
from gateway.serving.offers import Announcement
from gateway.serving.service import Service
from gateway.web.edge import Receive
from gateway.web.mcp.ladder import ModernRequest
from gateway.web.mcp.messages import notification_bytes, result_bytes
from gateway.web.mcp.offering import Offering
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
MOST_SUBSCRIPTIONS: Final = 256
"""Resources that one client hears of."""

_LISTS: Final = {
    f"notifications/{kind}/list_changed": f"{kind}ListChanged" for kind in ("tools", "prompts", "resources")
}


class Listening:
    def __init__(self, service: Service, offering: Offering) -> None:
        self._service = service
        self._offering = offering
        self._closing: set[Callable[[], None]] = set()

    async def listen(self, request: ModernRequest, receive: Receive, send: Send, *, principal: Principal) -> None:
        """Stream until the client goes or the server stops. Raises before anything is sent."""
        wanted = _wanted(request)
        if not request.headers.media.takes_streams:
            await json_error(send, 406, INVALID_REQUEST, "the client must accept text/event-stream", id=request.id)
            return
        if len(self._closing) >= MOST_LISTENERS:
            raise ProtocolError(INTERNAL_ERROR, "too many clients listen already")
        meta = {META_SUBSCRIPTION: request.id}
        ears = _Ears(self._offering, principal, meta, _honoured(wanted, self._offering.capabilities))
        honoured = ears.honoured
        stream = Stream()
        changed = notification_bytes("notifications/tools/list_changed", {"_meta": meta})
        over = result_bytes(request.id, orjson.dumps({"resultType": "complete", "_meta": meta}))
        acknowledged = {"notifications": honoured, "_meta": meta}
        stream.put(notification_bytes("notifications/subscriptions/acknowledged", acknowledged))

        def tell() -> None:
            stream.put(changed)

        def announced(announcement: Announcement) -> None:
            if (told := ears.told(announcement)) is not None:
                stream.put(told)

        def close() -> None:
            stream.put(over, final=True)

        self._closing.add(close)
        if "toolsListChanged" in honoured:
            self._service.on_change.add(tell)
        if honoured:
            self._service.on_announcement.add(announced)
        presence = Presence(receive, stream.release)
        try:
            await start_stream(send)
            await stream.pump(send, stream.take())
            await end_stream(send)
        finally:
            presence.stop()
            self._service.on_change.discard(tell)
            self._service.on_announcement.discard(announced)
            ears.close()
            self._closing.discard(close)

    def close(self) -> None:
        for close in tuple(self._closing):
            close()


class _Ears:
    """What one client hears. A resource that is not there for it is not acknowledged."""

    def __init__(
        self, offering: Offering, principal: Principal, meta: Mapping[str, Any], honoured: dict[str, Any]
    ) -> None:
        self._offering = offering
        self._principal = principal
        self._meta = meta
        self._ending: dict[str, Callable[[], None]] = {}
        self.honoured = honoured
        for uri in honoured.pop("resourceSubscriptions", ()):
            with suppress(Missing, ProtocolError, BackendFailed):
                self._ending.setdefault(uri, offering.subscribed(principal, uri))
        if self._ending:
            honoured["resourceSubscriptions"] = list(self._ending)

    def told(self, announcement: Announcement) -> bytes | None:
        if announcement.uri is None:
            is_wanted = _LISTS.get(announcement.method) in self.honoured
            return notification_bytes(announcement.method, {"_meta": self._meta}) if is_wanted else None
        if announcement.uri not in self._ending or not self._offering.may_hear(self._principal, announcement):
            return None
        return notification_bytes(announcement.method, {"uri": announcement.uri, "_meta": self._meta})

    def close(self) -> None:
        for end in self._ending.values():
            end()


def _honoured(wanted: Mapping[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
    """What of it is announced here at all."""
    kinds = {"tools", *(kind for kind in ("prompts", "resources") if kind in declared)}
    found: dict[str, Any] = {
        f"{kind}ListChanged": True for kind in sorted(kinds) if wanted.get(f"{kind}ListChanged") is True
    }
    uris = wanted.get("resourceSubscriptions")
    if "resources" in declared and isinstance(uris, list):
        found["resourceSubscriptions"] = [each for each in uris if isinstance(each, str)][:MOST_SUBSCRIPTIONS]
    return found


def _wanted(request: ModernRequest) -> Mapping[str, Any]:
    wanted = request.params.get("notifications")
    if not isinstance(wanted, dict):
        raise ProtocolError(INVALID_PARAMS, "params.notifications is an object")
    if wanted.get("taskIds"):  # none of them is acknowledged: who wants to know looks
        require_tasks(request.capabilities)
    return wanted
