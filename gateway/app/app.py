"""A running gateway: open storage, identities and published tools, and close them in reverse order."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gateway.app.audit_settings import AuditSettings, build_audit_settings
from gateway.app.bundle import BundleExpiryMonitor
from gateway.app.governance import Governance, RetentionPolicy, open_controls, retry_store
from gateway.app.identity_providers import build_providers
from gateway.app.jobs.record_sweeper import RecordSweeper
from gateway.app.jobs.webhook_job import build_webhooks
from gateway.app.metrics_collector import MetricsCollector
from gateway.app.project import LoadedProject, load_project
from gateway.app.project_source import ProjectCopy
from gateway.app.revisions.builder import UnavailableTool
from gateway.app.revisions.definition_refresh import Reassemble
from gateway.app.revisions.manager import RevisionInputs, RevisionManager
from gateway.app.secrets import Secrets, find_missing_secrets
from gateway.app.settings import Settings
from gateway.app.startup_checks import (
    check_environment,
    check_exposure,
    check_folder_permissions,
    check_project_exists,
    find_unreachable_approvals,
    self_approval_warning,
)
from gateway.app.stores.databases import (
    PostgresLocation,
    StorageLocation,
    check_spool,
    locate_storage,
    open_database,
    open_spool,
)
from gateway.app.telemetry_setup import (
    TelemetryPipeline,
    build_meter_pipeline,
    build_telemetry,
    is_capture_blocked,
    telemetry_settings,
)
from gateway.app.upstream_discovery import observe_refresh
from gateway.approvals import WebhookTarget
from gateway.backends import Upstreams
from gateway.config import RetentionSpec
from gateway.engine import DEFAULT_RETENTION, Call, CircuitState, HandlerGates, ReplayCapture, Service
from gateway.errors import ProgramError
from gateway.identity import Authenticator, IdentityProvider
from gateway.model import set_value_limit
from gateway.policy import Access, Validity
from gateway.registries import DeclaredTool, Diagnostic
from gateway.storage import ResultSpool
from gateway.telemetry import CAPTURE, GatewayMetrics
from gateway.telemetry import TelemetrySettings as TelemetrySettings


class ConfigInvalid(ProgramError):
    """The project has errors, so the gateway does not start. `diagnostics` are those of `gateway check`."""

    code = "E_CONFIG_INVALID"
    default_message = "the configuration has errors"

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(help="run: gateway check")
        self.diagnostics = diagnostics


@dataclass(frozen=True, slots=True)
class App:
    """A running gateway without its listeners."""

    service: Service
    settings: Settings
    revisions: RevisionManager
    recovered: int
    kept: StorageLocation
    spool: ResultSpool
    controlled: Governance
    metering: MetricsCollector
    observing: TelemetryPipeline
    told: tuple[str, ...] = ()
    """Warnings of the start."""

    @property
    def shares_turns(self) -> bool:
        """Whether other processes serve the same turns."""
        return _shares_turns(self.settings, self.kept)

    @property
    def assembled(self) -> LoadedProject:
        return self.revisions.current.assembled

    @property
    def identities(self) -> Authenticator:
        return self.revisions.current.identities

    @property
    def providers(self) -> tuple[IdentityProvider, ...]:
        return self.revisions.current.providers

    @property
    def unavailable_tools(self) -> tuple[UnavailableTool, ...]:
        return self.revisions.current.unavailable_tools

    @property
    def upstreams(self) -> Upstreams:
        return self.revisions.current.backends.upstreams

    @property
    def circuits(self) -> Mapping[str, CircuitState]:
        return self.revisions.current.shared.circuit_states()

    @property
    def warnings(self) -> list[str]:
        """Everything an operator should look at, in one line each."""
        found = [f"{each.position}: {each.message}" for each in self.assembled.diagnostics]
        found += [
            f"{each.tool.position}: {each.tool.name} is left out: {each.reason}" for each in self.unavailable_tools
        ]
        found += self.told
        found += find_missing_secrets(self.assembled.loaded.documents, self.revisions.current.draft.secrets)
        if self.revisions.current.warning is not None:
            found.append(self.revisions.current.warning)
        if problem := self.controlled.validity.problem:
            found.append(problem)
        if warning := self_approval_warning(self.service.published.snapshot):
            found.append(warning)
        if self.recovered:
            found.append(f"{self.recovered} calls were running when the gateway last ended; their outcome is unknown")
        return found


@dataclass(frozen=True, slots=True)
class AppInputs:
    """A checked project with its settings and identity providers. Nothing is open yet."""

    settings: Settings
    assembled: LoadedProject
    access: Access
    identities: Authenticator
    providers: tuple[IdentityProvider, ...]
    secrets: Secrets
    kept: StorageLocation
    auditing: AuditSettings
    webhooks: tuple[WebhookTarget, ...]
    telemetry: TelemetrySettings | None
    again: Reassemble
    """Load the same project with other definitions of upstreams."""
    environ: Mapping[str, str]
    folder: Path
    release: Callable[[], None] = lambda: None
    """Called when the folder is no longer read."""
    warning: str | None = None
    """Shown for as long as the project is served."""
    until: datetime | None = None
    """When the bundle expires, if it does."""

    @property
    def draft(self) -> RevisionInputs:
        return RevisionInputs(
            *(self.assembled, self.access, self.identities, self.providers, self.secrets),
            self.folder,
            self.again,
            self.release,
            self.warning,
        )


def prepare_app(
    settings: Settings,
    *,
    environ: Mapping[str, str] | None = None,
    today: date | None = None,
    taken: ProjectCopy | None = None,
) -> AppInputs:
    """Read and check everything, but open and write nothing. Raises `ConfigInvalid` or `StartRefused`.

    `taken` is the copy of the project to use instead of the folder in the settings.
    """
    environ = os.environ if environ is None else environ
    project = settings.project if taken is None else taken.project
    again = partial(
        load_project,
        project,
        environ=environ,
        today=today or datetime.now(UTC).date(),
        environment=settings.environment,
        packages=settings.python_packages,
    )
    assembled = again()
    if settings.bundle is None:
        check_project_exists(assembled, project.configs)
    check_environment(assembled, settings.environment)
    if assembled.access is None:
        raise ConfigInvalid(assembled.diagnostics)
    folder = project.configs
    secrets = Secrets(environ, settings.secrets_folder)
    providers = build_providers(assembled.identity_documents, secrets=secrets, folder=folder)
    identities = Authenticator(providers, _now)
    check_exposure(settings, identities)
    kept = locate_storage(assembled)
    check_folder_permissions(_folders(kept))
    check_spool(kept.spool, secrets)
    if isinstance(kept.database, PostgresLocation):
        secrets.read(kept.database.connection)
    if unreachable := find_unreachable_approvals(assembled):
        raise ConfigInvalid(unreachable)
    gateway = assembled.gateway_spec
    auditing = build_audit_settings(gateway.audit, secrets)
    webhooks = build_webhooks(gateway.webhooks, secrets)
    telemetry = telemetry_settings(assembled.telemetry_spec, environ=environ, secrets=secrets)
    return AppInputs(
        settings,
        assembled,
        assembled.access,
        identities,
        tuple(providers),
        secrets,
        kept,
        auditing,
        tuple(webhooks),
        telemetry,
        lambda imports: again(imports=imports),
        environ,
        folder,
        *(() if taken is None else (taken.release, taken.warning, taken.until)),
    )


@asynccontextmanager
async def run_app(
    settings: Settings, *, environ: Mapping[str, str] | None = None, today: date | None = None
) -> AsyncIterator[App]:
    """Start everything but the listeners. Raises `ConfigInvalid` or `StartRefused` before anything is opened."""
    async with start_app(prepare_app(settings, environ=environ, today=today)) as gateway:
        yield gateway


@asynccontextmanager
async def start_app(prepared: AppInputs) -> AsyncIterator[App]:
    """Start a prepared gateway. Everything is closed again if the start is cancelled."""
    async with AsyncExitStack() as closing:
        yield await _start(prepared, closing)


async def _start(prepared: AppInputs, closing: AsyncExitStack) -> App:
    settings, assembled, kept = prepared.settings, prepared.assembled, prepared.kept
    set_value_limit(settings.max_json_values)
    observed = build_telemetry(
        prepared.telemetry,
        key=prepared.auditing.key,
        published=lambda: service.published,
        environ=prepared.environ,
    )
    observed.start(closing)
    observed.attach_logs(closing)
    engine = await _open(open_database(kept.database, prepared.secrets), closing)
    store = engine.store
    spool = await _open(open_spool(kept.spool, prepared.secrets, small=store), closing)
    await prepared.identities.start()
    closing.push_async_callback(prepared.identities.close)
    measuring = build_meter_pipeline(prepared.telemetry)
    closing.push_async_callback(measuring.close)
    meters = GatewayMetrics(measuring.meter)

    async def journal(call: Call, tool: DeclaredTool) -> None:
        await service.journal(call, tool)

    retain, replay = assembled.storage_spec.retain, assembled.storage_spec.replay
    controlled = open_controls(
        engine,
        published=lambda: service.published,
        auditing=prepared.auditing,
        webhooks=prepared.webhooks,
        base_url=settings.public_url or f"http://{settings.host}:{settings.port}",
        closing=closing,
        announce=meters.count_approval,
        observer=observed.telemetry,
        validity=Validity(settings.bundle_grace, prepared.until),
        retained=_retention_policy(retain),
    )
    revisions = RevisionManager(
        controlled,
        journal=journal,
        packages=settings.python_packages,
        rounds=partial(observe_refresh, observed.telemetry),
    )
    closing.push_async_callback(revisions.close)
    published = await revisions.activate_first(prepared.draft)
    lives = (retain.calls if retain else None) or DEFAULT_RETENTION
    service = Service(
        published,
        store,
        spool,
        lives=lives,
        most_refusals=settings.max_refusals,
        replayed=None
        if replay is None
        else ReplayCapture(replay.arguments, tuple(replay.tools), tuple(replay.artifacts)),
        shares_turns=_shares_turns(settings, kept),
        auditor=controlled.auditor,
        meter=meters,
        observer=observed.telemetry,
    )
    observed.attach_buses(service.buses)
    closing.callback(HandlerGates(controlled.approvals).listen(service.buses))
    await controlled.start(closing)
    recovered = await retry_store(lambda: store.close_interrupted_calls(_now()))
    meters.count_unknown(recovered)
    shared = revisions.current.shared
    metering = MetricsCollector(
        measuring, meters, service, shared=shared, controlled=controlled, observing=observed, spool=spool
    )
    closing.callback(meters.close)
    closing.push_async_callback(measuring.close)  # the last values are read before what they are about is closed
    revisions.start(service, metering)
    expiring = BundleExpiryMonitor(controlled.validity)
    expiring.start()
    closing.push_async_callback(expiring.close)
    sweeping = asyncio.create_task(RecordSweeper(store, spool, report=meters.count_unknown).run())
    closing.push_async_callback(_cancel, sweeping)
    return App(
        service,
        settings,
        revisions,
        recovered,
        kept,
        spool,
        controlled,
        metering,
        observed,
        tuple(_start_warnings(prepared)),
    )


def _start_warnings(prepared: AppInputs) -> Iterator[str]:
    yield from prepared.auditing.warnings
    if is_capture_blocked(prepared.assembled.telemetry_spec, prepared.telemetry, prepared.environ):
        yield f"{CAPTURE} is ignored: contents of calls are exported only if a Telemetry document is in use"


class _Closable(Protocol):
    async def close(self) -> None: ...


_Resource = TypeVar("_Resource", bound=_Closable)


async def _open(opening: Coroutine[Any, Any, _Resource], closing: AsyncExitStack) -> _Resource:
    """Open a resource. If the start is cancelled meanwhile, wait until it is open, so that `closing` closes it."""
    task = asyncio.create_task(opening)
    try:
        await asyncio.wait({task})
    finally:
        if not task.done():
            await asyncio.wait({task})
        if task.exception() is None:
            closing.push_async_callback(task.result().close)
    return task.result()


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _shares_turns(settings: Settings, kept: StorageLocation) -> bool:
    return settings.workers > 1 or isinstance(kept.database, PostgresLocation)


def _retention_policy(retain: RetentionSpec | None) -> RetentionPolicy:
    limits = {} if retain is None else {"approvals": retain.approvals, "quotas": retain.quotas, "audit": retain.audit}
    return RetentionPolicy(**{name: value for name, value in limits.items() if value is not None})


def _folders(kept: StorageLocation) -> list[Path]:
    """Return the local folders that the gateway writes to."""
    database = [kept.database.parent] if isinstance(kept.database, Path) else []
    return [*database, *([kept.spool] if isinstance(kept.spool, Path) else [])]


def _now() -> datetime:
    return datetime.now(UTC)
