"""Streams of change notifications for clients that subscribe to lists or resources, one stream per client."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import orjson

from gateway.engine import ChangeNotification, Service
from gateway.errors import Missing
from gateway.mcp import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    META_SUBSCRIPTION,
    ProtocolError,
    encode_notification,
    encode_result,
)
from gateway.model import BackendError, Principal
from gateway.server.http.asgi import Receive
from gateway.server.mcp.mcp_request import StatelessRequest
from gateway.server.mcp.prompts_and_resources import PromptAndResourceMethods
from gateway.server.mcp.responses import DisconnectMonitor, EventStream, Send, end_stream, send_json_error, start_stream
from gateway.server.mcp.tasks import require_tasks

MAX_LISTENERS: Final = 10_000
MAX_SUBSCRIPTIONS: Final = 256
"""Maximum of resources that one client subscribes to."""

_LISTS: Final = {
    f"notifications/{kind}/list_changed": f"{kind}ListChanged" for kind in ("tools", "prompts", "resources")
}


class Subscriptions:
    def __init__(self, service: Service, offering: PromptAndResourceMethods) -> None:
        self._service = service
        self._offering = offering
        self._closing: set[Callable[[], None]] = set()

    async def stream(self, request: StatelessRequest, receive: Receive, send: Send, *, principal: Principal) -> None:
        """Send notifications until the client disconnects or the server stops. Errors are raised before any output."""
        requested = _parse_request(request)
        if not request.headers.media.takes_streams:
            await send_json_error(send, 406, INVALID_REQUEST, "the client must accept text/event-stream", id=request.id)
            return
        if len(self._closing) >= MAX_LISTENERS:
            raise ProtocolError(INTERNAL_ERROR, "too many clients have subscribed already")
        meta = {META_SUBSCRIPTION: request.id}
        subscriber = _Subscriber(self._offering, principal, meta, _filter(requested, self._offering.capabilities))
        supported = subscriber.supported
        stream = EventStream()
        changed = encode_notification("notifications/tools/list_changed", {"_meta": meta})
        over = encode_result(request.id, orjson.dumps({"resultType": "complete", "_meta": meta}))
        acknowledged = {"notifications": supported, "_meta": meta}
        stream.put(encode_notification("notifications/subscriptions/acknowledged", acknowledged))

        def notify_tools_changed() -> None:
            stream.put(changed)

        def notify_change(announcement: ChangeNotification) -> None:
            if (notification := subscriber.to_notification(announcement)) is not None:
                stream.put(notification)

        def close() -> None:
            stream.put(over, final=True)

        self._closing.add(close)
        if "toolsListChanged" in supported:
            self._service.on_change.add(notify_tools_changed)
        if supported:
            self._service.on_announcement.add(notify_change)
        presence = DisconnectMonitor(receive, stream.release)
        try:
            await start_stream(send)
            await stream.send_events(send, stream.attach())
            await end_stream(send)
        finally:
            presence.stop()
            self._service.on_change.discard(notify_tools_changed)
            self._service.on_announcement.discard(notify_change)
            subscriber.close()
            self._closing.discard(close)

    def close(self) -> None:
        for close in tuple(self._closing):
            close()


class _Subscriber:
    """The notifications of one client. A resource that does not exist for it is not acknowledged."""

    def __init__(
        self,
        offering: PromptAndResourceMethods,
        principal: Principal,
        meta: Mapping[str, Any],
        supported: dict[str, Any],
    ) -> None:
        self._offering = offering
        self._principal = principal
        self._meta = meta
        self._ending: dict[str, Callable[[], None]] = {}
        self.supported = supported
        for uri in supported.pop("resourceSubscriptions", ()):
            with suppress(Missing, ProtocolError, BackendError):
                self._ending.setdefault(uri, offering.subscribe(principal, uri))
        if self._ending:
            supported["resourceSubscriptions"] = list(self._ending)

    def to_notification(self, announcement: ChangeNotification) -> bytes | None:
        if announcement.uri is None:
            is_requested = _LISTS.get(announcement.method) in self.supported
            return encode_notification(announcement.method, {"_meta": self._meta}) if is_requested else None
        if announcement.uri not in self._ending or not self._offering.may_notify(self._principal, announcement):
            return None
        return encode_notification(announcement.method, {"uri": announcement.uri, "_meta": self._meta})

    def close(self) -> None:
        for end in self._ending.values():
            end()


def _filter(requested: Mapping[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the requested notifications that the server supports."""
    kinds = {"tools", *(kind for kind in ("prompts", "resources") if kind in declared)}
    found: dict[str, Any] = {
        f"{kind}ListChanged": True for kind in sorted(kinds) if requested.get(f"{kind}ListChanged") is True
    }
    uris = requested.get("resourceSubscriptions")
    if "resources" in declared and isinstance(uris, list):
        found["resourceSubscriptions"] = [each for each in uris if isinstance(each, str)][:MAX_SUBSCRIPTIONS]
    return found


def _parse_request(request: StatelessRequest) -> Mapping[str, Any]:
    requested = request.params.get("notifications")
    if not isinstance(requested, dict):
        raise ProtocolError(INVALID_PARAMS, "params.notifications must be an object")
    if requested.get("taskIds"):  # accepted, but not acknowledged: clients poll tasks
        require_tasks(request.capabilities)
    return requested
