"""What upstream servers announce to everybody, passed on to whoever listens here: lists and resources that changed."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.governance.imports import DefinitionKind
from gateway.serving.offers import Announcement
from gateway.serving.service import Service
from gateway.upstreams.connections import Connection
from gateway.upstreams.registry import Upstreams

UPDATED: Final = "notifications/resources/updated"

LIST_CHANGED: Final[Mapping[DefinitionKind, str]] = {
    "prompt": "notifications/prompts/list_changed",
    "resourceTemplate": "notifications/resources/list_changed",
}
"""How clients are told that a list is another one; that of tools is, wherever another list is served."""

_LISTS: Final = frozenset(f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources"))
_LONGEST: Final = 8192


def relay_announcements(service: Service, upstreams: Upstreams) -> list[Callable[[], None]]:
    """From now on, until what is returned is called. Servers that nothing is served of are not listened to."""
    snapshot = service.published.snapshot
    served = {each.upstream for each in snapshot.tools.values()} | {each.upstream for each in snapshot.offers.values()}
    return [_relay(service, connection) for connection in upstreams if connection.name in served]


def _relay(service: Service, connection: Connection) -> Callable[[], None]:
    def heard(method: str, params: Mapping[str, Any]) -> None:
        if method in _LISTS:
            service.announce(Announcement(connection.name, method))
        elif method == UPDATED and isinstance(uri := params.get("uri"), str) and len(uri) <= _LONGEST:
            service.announce(Announcement(connection.name, method, uri))

    return connection.on_notification(heard)
