"""Build the ASGI apps of the data plane and the admin plane, with authentication and readiness."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from gateway.app.app import App
from gateway.app.cluster.peer_router import derive_peer_id
from gateway.app.cluster.worker_router import build_state_prefix
from gateway.app.metrics_collector import MetricsCollector
from gateway.app.revisions.reload import Reloader
from gateway.app.settings import Settings
from gateway.app.status_report import build_status
from gateway.engine import CallMeter, TurnSync
from gateway.errors import StoreUnavailable, Unauthenticated
from gateway.identity import build_challenge, issuer_metadata, protected_resource_metadata
from gateway.model import Principal
from gateway.policy import KillSwitch
from gateway.server import (
    ISSUER_METADATA_PATH,
    METRICS_PATH,
    OPEN_PATHS,
    PROTECTED_RESOURCE_PATH,
    AdmissionControl,
    AdmissionMeter,
    AsgiApp,
    EdgeMiddleware,
    EdgeRules,
    EventLogs,
    McpEndpoint,
    ShutdownSignal,
    build_admin_router,
    build_data_app,
    build_data_router,
    build_routes,
    metrics_routes,
    reload_routes,
    status_routes,
)
from gateway.storage import descriptor_problem

_ENDPOINT: Final = re.compile(r"/?|(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*/mcp")
"""Paths that an MCP endpoint may have, and the root of the gateway."""
_LONGEST_PATH: Final = 320


@dataclass(frozen=True, slots=True)
class RoutedApps:
    """The apps behind the edge of the data plane: for callers, and for requests that other processes forward."""

    public: AsgiApp
    from_peers: AsgiApp | None = None
    from_workers: AsgiApp | None = None


@dataclass(frozen=True, slots=True)
class AsgiApps:
    """Both apps. `close_streams` ends open event streams, `close` ends everything that outlives a request."""

    data: AsgiApp
    admin: AsgiApp
    close_streams: Callable[[], None]
    close: Callable[[], Awaitable[None]]
    metering: MetricsCollector
    admission: AdmissionControl
    from_peers: AsgiApp | None = None
    """The data plane for requests that other gateways forward: the caller is authenticated again."""
    from_workers: AsgiApp | None = None

    @property
    def meter(self) -> CallMeter:
        return self.metering.meters

    def count_refusal(self, method: str) -> None:
        self.meter.count_rejection(503)


def build_asgi_apps(
    running: App,
    *,
    base_url: str,
    stopping: ShutdownSignal,
    reloading: Reloader | None = None,
    worker: int | None = None,
    route: Callable[[AsgiApp], RoutedApps] = RoutedApps,
) -> AsgiApps:
    """Build both apps. `base_url` is the URL for callers, `worker` the index of this worker.

    `route` inserts a router to other processes behind authentication and before the paths.
    """
    ready = _build_readiness(running, stopping, reloading)
    rules = EdgeRules(
        hosts=running.settings.hosts,
        origins=frozenset(running.settings.allowed_origins),
        open_paths=("/livez", "/readyz", PROTECTED_RESOURCE_PATH, ISSUER_METADATA_PATH, *OPEN_PATHS),
        challenge=_build_challenges(running, base_url),
    )
    service = running.service
    limit = running.settings.max_body
    metering = running.metering
    admission = build_admission(running.settings, metering.meters)
    metering.serve(admission)
    peer_url = running.settings.peer_url
    home = build_state_prefix("" if peer_url is None else derive_peer_id(peer_url), worker)
    endpoints: list[McpEndpoint] = []
    logs = EventLogs()

    def mcp(catalogue: str) -> AsgiApp:
        approvals = running.controlled.approvals
        endpoints.append(McpEndpoint(service, catalogue, max_body=limit, approvals=approvals, home=home))
        return endpoints[-1]

    def close_streams() -> None:
        for endpoint in endpoints:
            endpoint.close_streams()
        logs.close()

    async def close() -> None:
        for endpoint in endpoints:
            await endpoint.close()

    def authenticate(authorization: bytes | None) -> Awaitable[Principal]:
        return running.identities.authenticate(authorization)

    def recall(authorization: bytes | None) -> Principal | None:
        return running.revisions.current.identities.get_cached(authorization)

    paths = build_data_app(
        service,
        ready=ready,
        metadata=_build_metadata(running, base_url),
        mcp=mcp,
        rest=build_routes(
            service,
            max_body=limit,
            logs=logs,
            approvals=running.controlled.approvals,
            grants=running.controlled.grants,
            catch_up=TurnSync(running.controlled.store, running.spool) if running.shares_turns else None,
        ),
        issuer_metadata=lambda: issuer_metadata(running.providers),
    )
    routed = route(paths)
    is_stopped = partial(_is_stopped, running.controlled.stops)

    def behind_edge(app: AsgiApp | None) -> AsgiApp | None:
        return None if app is None else EdgeMiddleware(app, rules, authenticate, recall, is_stopped=is_stopped)

    data = build_data_router(routed.public, authenticate, recall, rules=rules, is_stopped=is_stopped)

    def administers(who: Principal) -> bool:
        return service.published.access.can_administer(who)

    def observes(who: Principal) -> bool:
        return service.published.access.can_read_metrics(who)

    is_open = running.settings.are_metrics_open
    admin = build_admin_router(
        authenticate,
        rules=EdgeRules(
            running.settings.admin_hosts, open_paths=("/livez", "/readyz", *((METRICS_PATH,) if is_open else ()))
        ),
        ready=ready,
        routes=[
            *status_routes(administers, lambda: build_status(running, reloading, admission=admission)),
            *(() if reloading is None else reload_routes(administers, reloading.reload_all_workers)),
            *metrics_routes(metering.render, None if is_open else observes),
        ],
    )
    return AsgiApps(
        data,
        admin,
        close_streams,
        close,
        metering,
        admission,
        behind_edge(routed.from_peers),
        behind_edge(routed.from_workers),
    )


def _is_stopped(stops: KillSwitch, principal: Principal) -> bool:
    """Whether a principal is in quarantine, or the store cannot be read."""
    try:
        return stops.find_stop(tool="", subject=principal.subject, is_consequential=True) is not None
    except StoreUnavailable:
        return True


def build_admission(settings: Settings, meter: AdmissionMeter | None = None) -> AdmissionControl:
    wait = settings.max_wait.total_seconds()
    return AdmissionControl(settings.max_requests, queue=settings.max_queue, wait=wait, meter=meter)


def _build_readiness(running: App, stopping: ShutdownSignal, reloading: Reloader | None) -> Any:
    validity = running.controlled.validity

    def ready() -> Mapping[str, Any]:
        reasons = ["stopping"] if stopping.times else []
        reasons += [f"no keys of {issuer}" for issuer in running.identities.issuers_without_keys]
        reasons += [problem] if (problem := descriptor_problem() or running.controlled.engine.problem) else []
        reasons += ["the served bundle has expired"] if validity.state == "over" else []
        reasons += [] if running.identities.can_check_revocations() else ["revocations of tokens cannot be checked"]
        state: dict[str, Any] = {"ready": not reasons, "revision": running.service.published.snapshot.short_revision}
        of_reload = [] if reloading is None or reloading.problem is None else [reloading.problem]
        spool = [] if (trouble := running.spool.problem) is None else [f"large results are refused: {trouble}"]
        if problems := [*of_reload, *running.controlled.problems, *running.upstreams.problems, *spool]:
            state["problems"] = problems
        return {**state, "reasons": reasons} if reasons else state

    return ready


def _build_challenges(running: App, base_url: str) -> Any:
    def challenge(path: str, error: Unauthenticated) -> bytes:
        has_issuers = "authorization_servers" in protected_resource_metadata(base_url, running.providers)
        where = f"{base_url}{PROTECTED_RESOURCE_PATH}{quote(path)}" if has_issuers and path.endswith("/mcp") else None
        return build_challenge(where, error)

    return challenge


def _build_metadata(running: App, base_url: str) -> Any:
    def describe(path: str) -> Mapping[str, Any] | None:
        """Return the metadata of the root or of any possible MCP path. It depends on the path alone, so that it does
        not reveal which catalogues exist.
        """
        if len(path) > _LONGEST_PATH or not _ENDPOINT.fullmatch(path):
            return None
        return protected_resource_metadata(f"{base_url}{path}", running.providers)

    return describe
