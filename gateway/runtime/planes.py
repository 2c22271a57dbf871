"""The apps of a running gateway: who is let in, what they are told about tokens, and whether calls are taken."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from gateway.errors import StoreUnavailable, Unauthenticated
from gateway.governance.principals import Principal
from gateway.governance.quarantines import KillSwitch
from gateway.identity.challenges import challenge, issuer_metadata, protected_resource_metadata
from gateway.runtime.admitting import Admission
from gateway.runtime.metering import Metering
from gateway.runtime.peers import named
from gateway.runtime.reloading import Reloading
from gateway.runtime.running import Running
from gateway.runtime.settings import Settings
from gateway.runtime.states import home_of
from gateway.runtime.status import status_of
from gateway.runtime.stopping import Stopping
from gateway.serving.catching_up import CatchingUp
from gateway.storage.room import descriptor_problem
from gateway.web.app import ISSUER_METADATA, WELL_KNOWN, admin_plane, data_paths, data_plane
from gateway.web.edge import App, Edge, EdgeRules
from gateway.web.mcp.endpoint import McpEndpoint
from gateway.web.metering import Metered
from gateway.web.metrics import PATH, metrics_routes
from gateway.web.reloading import reload_routes
from gateway.web.rest.routing import OPEN_PATHS, routes
from gateway.web.rest.streams import EventLogs
from gateway.web.status import status_routes

_ENDPOINT: Final = re.compile(r"/?|(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*/mcp")
"""Where MCP may be served, and the gateway as a whole."""
_LONGEST_PATH: Final = 320


@dataclass(frozen=True, slots=True)
class Entrances:
    """What is behind the edge of the data plane: for callers, and for what other processes pass on."""

    public: App
    from_peers: App | None = None
    from_workers: App | None = None


@dataclass(frozen=True, slots=True)
class Planes:
    """Both apps. `hush` tells everybody who only listens that it is over, `close` ends what outlives a request."""

    data: App
    admin: App
    hush: Callable[[], None]
    close: Callable[[], Awaitable[None]]
    metering: Metering
    admission: Admission
    from_peers: App | None = None
    """The data plane for what other gateways pass on: who calls is judged again."""
    from_workers: App | None = None

    def refused(self, method: str) -> None:
        self.metering.meters.turned_away(503)


def planes(
    running: Running,
    *,
    base_url: str,
    stopping: Stopping,
    reloading: Reloading | None = None,
    worker: int | None = None,
    route: Callable[[App], Entrances] = Entrances,
) -> Planes:
    """The apps of a running gateway. `base_url` is how callers reach them, `worker` which of several this is.

    `route` puts between the edge and the paths what leads to other processes: only callers who were let in get there.
    """
    ready = _readiness(running, stopping, reloading)
    rules = EdgeRules(
        hosts=running.settings.hosts,
        origins=frozenset(running.settings.allowed_origins),
        open_paths=("/livez", "/readyz", WELL_KNOWN, ISSUER_METADATA, *OPEN_PATHS),
        challenge=_challenges(running, base_url),
    )
    service = running.service
    limit = running.settings.max_body
    admission = admission_of(running.settings)
    peer_url = running.settings.peer_url
    home = home_of("" if peer_url is None else named(peer_url), worker)
    endpoints: list[McpEndpoint] = []
    logs = EventLogs()

    def mcp(catalogue: str) -> App:
        approvals = running.controlled.approvals
        endpoints.append(McpEndpoint(service, catalogue, max_body=limit, approvals=approvals, home=home))
        return endpoints[-1]

    def hush() -> None:
        for endpoint in endpoints:
            endpoint.hush()
        logs.hush()

    async def close() -> None:
        for endpoint in endpoints:
            await endpoint.close()

    def authenticate(authorization: bytes | None) -> Awaitable[Principal]:
        return running.identities.authenticate(authorization)

    def recall(authorization: bytes | None) -> Principal | None:
        return running.revisions.current.identities.recalled(authorization)

    paths = data_paths(
        service,
        ready=ready,
        metadata=_metadata(running, base_url),
        mcp=mcp,
        rest=routes(
            service,
            max_body=limit,
            logs=logs,
            approvals=running.controlled.approvals,
            catch_up=CatchingUp(running.controlled.store, running.spool) if running.shares_turns else None,
        ),
        issuer_metadata=lambda: issuer_metadata(running.providers),
    )
    entrances = route(paths)
    is_stopped = partial(_is_stopped, running.controlled.quarantines)

    def behind_edge(app: App | None) -> App | None:
        return None if app is None else Edge(app, rules, authenticate, recall, is_stopped=is_stopped)

    data = data_plane(entrances.public, authenticate, recall, rules=rules, is_stopped=is_stopped)
    metering = running.metering

    def administers(who: Principal) -> bool:
        return service.published.access.administers(who)

    def observes(who: Principal) -> bool:
        return service.published.access.observes(who)

    is_open = running.settings.are_metrics_open
    admin = admin_plane(
        authenticate,
        rules=EdgeRules(running.settings.admin_hosts, open_paths=("/livez", "/readyz", *((PATH,) if is_open else ()))),
        ready=ready,
        routes=[
            *status_routes(administers, lambda: status_of(running, reloading, admission=admission)),
            *(() if reloading is None else reload_routes(administers, reloading.everywhere)),
            *metrics_routes(metering.exposed, None if is_open else observes),
        ],
    )
    return Planes(
        Metered(data, metering.meters),
        admin,
        hush,
        close,
        metering,
        admission,
        behind_edge(entrances.from_peers),
        behind_edge(entrances.from_workers),
    )


def _is_stopped(quarantines: KillSwitch, principal: Principal) -> bool:
    """Whether a principal is in quarantine, or nobody can tell."""
    try:
        return quarantines.stopped_by(tool="", subject=principal.subject, is_consequential=True) is not None
    except StoreUnavailable:
        return True


def admission_of(settings: Settings) -> Admission:
    return Admission(settings.max_requests, queue=settings.max_queue, wait=settings.max_wait.total_seconds())


def _readiness(running: Running, stopping: Stopping, reloading: Reloading | None) -> Any:
    validity = running.controlled.validity

    def ready() -> Mapping[str, Any]:
        reasons = ["stopping"] if stopping.times else []
        reasons += [f"no keys of {issuer}" for issuer in running.identities.issuers_without_keys]
        reasons += [problem] if (problem := descriptor_problem() or running.controlled.engine.problem) else []
        reasons += ["the bundle that is served does not count any more"] if validity.state == "over" else []
        reasons += [] if running.identities.knows_revocations() else ["revoked tokens cannot be told from others"]
        state: dict[str, Any] = {"ready": not reasons, "revision": running.service.published.snapshot.short_revision}
        of_reload = [] if reloading is None or reloading.problem is None else [reloading.problem]
        spool = [] if (trouble := running.spool.trouble) is None else [f"large results are refused: {trouble}"]
        if problems := [*of_reload, *running.controlled.problems, *running.upstreams.problems, *spool]:
            state["problems"] = problems
        return {**state, "reasons": reasons} if reasons else state

    return ready


def _challenges(running: Running, base_url: str) -> Any:
    def told(path: str, error: Unauthenticated) -> bytes:
        has_issuers = "authorization_servers" in protected_resource_metadata(base_url, running.providers)
        where = f"{base_url}{WELL_KNOWN}{quote(path)}" if has_issuers and path.endswith("/mcp") else None
        return challenge(where, error)

    return told


def _metadata(running: Running, base_url: str) -> Any:
    def describe(path: str) -> Mapping[str, Any] | None:
        """Of the gateway as a whole, and of every path that an MCP endpoint could have. Anybody may ask, so the answer
        follows from the path alone and does not tell which catalogues there are.
        """
        if len(path) > _LONGEST_PATH or not _ENDPOINT.fullmatch(path):
            return None
        return protected_resource_metadata(f"{base_url}{path}", running.providers)

    return describe
