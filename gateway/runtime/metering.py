"""Metrics of a running gateway: what it counted, what is looked up when asked, and what its other workers say."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.errors import StoreUnavailable
from gateway.governance.ports import BackendFailed
from gateway.middleware.build import SharedState
from gateway.middleware.resilience import CircuitState
from gateway.runtime.controlling import Controlling
from gateway.runtime.observing import Observing
from gateway.serving.service import Service
from gateway.storage.spool import PieceSpool
from gateway.telemetry import names
from gateway.telemetry.exporting import Queue
from gateway.telemetry.instruments import Attributes, Family, Point, Values, merged, observed
from gateway.telemetry.meters import Meters
from gateway.telemetry.passing import packed, unpacked
from gateway.telemetry.prometheus_text import CONTENT_TYPES, exposition, wanted_format
from gateway.upstreams.connections import Connection
from gateway.upstreams.messages import RemoteError
from gateway.web.edge import Receive, Scope, Send
from gateway.web.problems import bytes_response

INSIDE: Final = "/.gateway/metrics"
"""Where a worker tells another one what it has counted, as agreeing does it. No other listener serves it."""

Others = Callable[[str], Awaitable[Mapping[int, bytes]]]
"""What the other workers answer to a path, each by its number; one that does not answer is left out."""

Place = tuple[str | None, int | None, tuple[str | None, str | None, str | None]]
"""Host and port of an upstream server, and how it is spoken to."""

_STATES: Final[Mapping[CircuitState, int]] = {"closed": 0, "half-open": 1, "open": 2}
_log: Final = logging.getLogger(__name__)


class Metering:
    """`others` and `worker` are set where several processes serve."""

    def __init__(
        self,
        meters: Meters,
        service: Service,
        *,
        shared: SharedState,
        controlled: Controlling,
        observing: Observing,
        spool: PieceSpool,
    ) -> None:
        self.meters = meters
        self._service = service
        self._shared = shared
        self._controlled = controlled
        self._observing = observing
        self._spool = spool
        self._revision = service.published.snapshot.revision
        service.on_change.add(self._published)
        self._places: dict[str, Place] = {}
        self.worker: int | None = None
        self.others: Others | None = None

    async def exposed(self, accept: str) -> tuple[bytes, str]:
        """Everything as text, and the type of that."""
        format = wanted_format(accept)
        families = await self._everything()
        return await asyncio.to_thread(exposition, families, format, about=self._about()), CONTENT_TYPES[format]

    async def read(self) -> list[Family]:
        """Of this process, with what all of them have in common."""
        return merged([self._own(), await self._in_common()])

    async def inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        """For another worker, who adds whose it is."""
        await bytes_response(packed(self._own()))(scope, receive, send)

    async def _everything(self) -> list[Family]:
        if self.others is None or self.worker is None:
            return await self.read()
        told = {self.worker: self._own()}
        for worker, content in (await self.others(INSIDE)).items():
            try:
                told[worker] = unpacked(content)
            except ValueError:
                _log.warning("worker %d tells its metrics in a way that is not ours", worker)
        return merged([*(_of_worker(*each) for each in sorted(told.items())), await self._in_common()])

    def _own(self) -> list[Family]:
        telemetry = self._observing.telemetry
        return [
            *self.meters.read(),
            observed(names.RUNNING, [((), len(self._service.running))]),
            observed(names.CIRCUITS, self._circuits()),
            observed(names.SPOOL_UNAVAILABLE, [((), int(self._spool.trouble is not None))]),
            observed(names.CONFIG_EXPIRES, self._expires()),
            observed(names.DEFINITION_CHANGES, self._changes()),
            observed(names.SPANS_PROCESSED, _processed(telemetry.spans if telemetry else None)),
            observed(names.LOGS_PROCESSED, _processed(telemetry.logs if telemetry else None)),
        ]

    def measure(self, connections: Iterable[Connection]) -> None:
        """Have every request to an upstream server counted."""
        for connection in connections:
            connection.metered = self._hopped

    def _hopped(
        self,
        connection: Connection,
        method: str,
        params: Mapping[str, Any],
        seconds: float,
        outcome: BackendFailed | Mapping[str, Any],
    ) -> None:
        error: str | None = None
        if isinstance(outcome, BackendFailed):
            error = outcome.word
        elif outcome.get("isError") is True:
            error = names.TOOL_ERROR
        known = connection.introduction
        where = self._places.get(connection.name)
        if where is None:
            where = self._places[connection.name] = _place_of(connection)
        host, port, network = where
        self.meters.hopped(
            method,
            seconds=seconds,
            tool=str(params.get("name")) if method == names.TOOLS_CALL else None,
            error=error,
            code=outcome.number if isinstance(outcome, RemoteError) else None,
            version=None if known is None else known.version,
            host=host,
            port=port,
            network=network,
        )

    def _published(self) -> None:
        """Told of every change of what is published; only another revision is another configuration."""
        revision = self._service.published.snapshot.revision
        if revision != self._revision:
            self._revision = revision
            self.meters.reloaded("published")

    def _changes(self) -> Iterator[tuple[Values, float]]:
        vigil = self._service.published.vigil
        for upstream, count in (vigil.changes if vigil is not None else {}).items():
            yield (upstream,), count

    def _expires(self) -> Iterator[tuple[Values, float]]:
        """Nothing of what never does."""
        until = self._controlled.validity.until
        if until is not None:
            yield (), until.timestamp()

    def _circuits(self) -> Iterator[tuple[Values, float]]:
        for key, state in self._shared.circuit_states().items():
            kind, _, name = key.partition(":")
            yield ((None, name) if kind == "upstream" else (name, None)), _STATES[state]

    async def _in_common(self) -> list[Family]:
        """Of the store that all processes share. One that cannot be read is told by other metrics."""
        rules = self._service.published.snapshot.gates.values()
        none = {rule.name: 0 for rule in rules if rule.approval is not None}
        try:
            pending = {**none, **await self._controlled.approvals.pending(datetime.now(UTC))}
        except StoreUnavailable:
            return []
        return [observed(names.APPROVALS_PENDING, [((rule,), count) for rule, count in pending.items()])]

    def _about(self) -> Attributes:
        snapshot = self._service.published.snapshot
        return (
            ("service.name", "agent-gateway"),
            ("service.version", _version()),
            (names.CONFIG_REVISION, snapshot.short_revision),
        )


def _place_of(connection: Connection) -> Place:
    parts = urlsplit(str(getattr(connection, "address", "")))
    if parts.scheme not in ("http", "https"):
        return None, None, ("pipe", None, None)
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), ("tcp", "http", None)


def _of_worker(worker: int, families: Sequence[Family]) -> list[Family]:
    """Apart for each worker: one that was replaced begins anew, which only looks like what it is if it is alone."""
    label = ("worker", str(worker))
    return [
        Family(each.metric, [Point((*point.attributes, label), point.value) for point in each.points])
        for each in families
    ]


def _processed(queue: Queue | None) -> Iterator[tuple[Values, float]]:
    """What came to be sent, and apart from it what was let go."""
    if queue is not None:
        dropped = dict(queue.dropped)
        yield (None,), queue.taken - sum(dropped.values())
        for reason, count in dropped.items():
            yield (reason,), count


def _version() -> str:
    try:
        return version("agent-gateway")
    except PackageNotFoundError:
        return "0"
