"""A running gateway: storage opened, identities ready, tools published; everything closed again in the other order."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gateway.access import Access
from gateway.approvals.webhooks import Webhook
from gateway.assembly import Assembled, assemble
from gateway.config.specs.gateway import (
    IdentityProviderDocument,
    Retain,
    TelemetryDocument,
    TelemetrySpec,
)
from gateway.core.bounded_json import bound_values
from gateway.errors import ProgramError
from gateway.governance.diagnostics import Diagnostic
from gateway.governance.validity import Validity
from gateway.identity.identities import Identities
from gateway.identity.providers import Provider
from gateway.middleware.resilience import CircuitState
from gateway.runtime.accepting import Again
from gateway.runtime.auditing import Auditing, auditing_of
from gateway.runtime.channels import approvals_in_vain, unreachable_approvals
from gateway.runtime.controlling import Controlling, Retained, controlling, patiently
from gateway.runtime.engines import PostgresDatabase, open_engine
from gateway.runtime.expiring import Expiring
from gateway.runtime.identities import providers_of
from gateway.runtime.kept import Kept, gateway_of, kept_by, storage_of
from gateway.runtime.metering import Metering
from gateway.runtime.notifying import webhooks_of
from gateway.runtime.observing import Observing, contents_held_back, observing, sending_metrics, telemetry_settings
from gateway.runtime.publishing import Unworkable
from gateway.runtime.refusing import (
    refuse_exposure,
    refuse_no_project,
    refuse_shared_folders,
    refuse_unknown_environment,
)
from gateway.runtime.revisions import Draft, Revisions
from gateway.runtime.secrets import Secrets, absent_secrets
from gateway.runtime.settings import Settings
from gateway.runtime.sourcing import Taken
from gateway.runtime.spooling import open_spool, refuse_unusable
from gateway.runtime.sweeping import Sweeper
from gateway.serving.current import ServedCall
from gateway.serving.handler_gates import HandlerGates
from gateway.serving.service import DEFAULT_LIFE, Service
from gateway.snapshot import DeclaredTool
from gateway.storage.spool import PieceSpool
from gateway.telemetry.environment import CAPTURE
from gateway.telemetry.meters import Meters
from gateway.telemetry.settings import Settings as TelemetrySettings
from gateway.upstreams.registry import Upstreams


class ConfigInvalid(ProgramError):
    """The project has errors: nothing starts. `diagnostics` are what `gateway check` shows."""

    code = "E_CONFIG_INVALID"
    default_message = "the configuration has errors"

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(help="run: gateway check")
        self.diagnostics = diagnostics


@dataclass(frozen=True, slots=True)
class Running:
    """Everything a server needs."""

    service: Service
    settings: Settings
    revisions: Revisions
    recovered: int
    kept: Kept
    spool: PieceSpool
    controlled: Controlling
    metering: Metering
    observing: Observing
    told: tuple[str, ...] = ()
    """What else was noticed at the start."""

    @property
    def shares_turns(self) -> bool:
        """Whether other processes serve the same turns."""
        return _shares_turns(self.settings, self.kept)

    @property
    def assembled(self) -> Assembled:
        return self.revisions.current.assembled

    @property
    def identities(self) -> Identities:
        return self.revisions.current.identities

    @property
    def providers(self) -> tuple[Provider, ...]:
        return self.revisions.current.providers

    @property
    def unworkable(self) -> tuple[Unworkable, ...]:
        return self.revisions.current.unworkable

    @property
    def upstreams(self) -> Upstreams:
        """Servers whose tools are called."""
        return self.revisions.current.backends.upstreams

    @property
    def circuits(self) -> Mapping[str, CircuitState]:
        return self.revisions.current.shared.circuit_states()

    @property
    def warnings(self) -> list[str]:
        """What deserves attention, in one line each."""
        found = [f"{each.position}: {each.message}" for each in self.assembled.diagnostics]
        found += [f"{each.tool.position}: {each.tool.name} is left out: {each.reason}" for each in self.unworkable]
        found += self.told
        found += absent_secrets(self.assembled.loaded.documents, self.revisions.current.draft.secrets)
        if self.revisions.current.warning is not None:
            found.append(self.revisions.current.warning)
        if problem := self.controlled.validity.problem:
            found.append(problem)
        if vain := approvals_in_vain(self.service.published.snapshot):
            found.append(vain)
        if self.recovered:
            found.append(f"{self.recovered} calls were running when the gateway last ended; their outcome is unknown")
        return found


@dataclass(frozen=True, slots=True)
class Prepared:
    """A project that may be served, and who is let in. Nothing of it is open yet."""

    settings: Settings
    assembled: Assembled
    access: Access
    identities: Identities
    providers: tuple[Provider, ...]
    secrets: Secrets
    kept: Kept
    auditing: Auditing
    webhooks: tuple[Webhook, ...]
    telemetry: TelemetrySettings | None
    again: Again
    """The same project with other imports."""
    environ: Mapping[str, str]
    folder: Path
    release: Callable[[], None] = lambda: None
    """Told when nobody reads in the folder any more."""
    warning: str | None = None
    """What deserves attention as long as it is served."""
    until: datetime | None = None
    """When it stops to count, if it does."""

    @property
    def draft(self) -> Draft:
        return Draft(
            *(self.assembled, self.access, self.identities, self.providers, self.secrets),
            self.folder,
            self.again,
            self.release,
            self.warning,
        )


def prepared(
    settings: Settings,
    *,
    environ: Mapping[str, str] | None = None,
    today: date | None = None,
    taken: Taken | None = None,
) -> Prepared:
    """Read and judge everything; open, start and write nothing. Raises `ConfigInvalid` or `StartRefused`.

    `taken` is where the project is, if it is not in the folder of the settings.
    """
    environ = os.environ if environ is None else environ
    project = settings.project if taken is None else taken.project
    again = partial(
        assemble,
        project,
        environ=environ,
        today=today or datetime.now(UTC).date(),
        environment=settings.environment,
        packages=settings.python_packages,
    )
    assembled = again()
    if settings.bundle is None:
        refuse_no_project(assembled, project.configs)
    refuse_unknown_environment(assembled, settings.environment)
    if assembled.access is None:
        raise ConfigInvalid(assembled.diagnostics)
    folder = project.configs
    secrets = Secrets(environ, settings.secrets_folder)
    providers = providers_of(_identity_documents(assembled), secrets=secrets, folder=folder)
    identities = Identities(providers, _now)
    refuse_exposure(settings, identities)
    kept = kept_by(assembled)
    refuse_shared_folders(_folders(kept))
    refuse_unusable(kept.spool, secrets)
    if isinstance(kept.database, PostgresDatabase):
        secrets.read(kept.database.connection)
    if unreachable := unreachable_approvals(assembled):
        raise ConfigInvalid(unreachable)
    gateway = gateway_of(assembled).spec
    auditing = auditing_of(gateway.audit, secrets)
    webhooks = webhooks_of(gateway.webhooks, secrets)
    telemetry = telemetry_settings(telemetry_of(assembled), environ=environ, secrets=secrets)
    return Prepared(
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
async def running(
    settings: Settings, *, environ: Mapping[str, str] | None = None, today: date | None = None
) -> AsyncIterator[Running]:
    """Start everything but the listeners. Raises `ConfigInvalid` or `StartRefused` before anything is opened."""
    async with opened(prepared(settings, environ=environ, today=today)) as gateway:
        yield gateway


@asynccontextmanager
async def opened(prepared: Prepared) -> AsyncIterator[Running]:
    """The same from what was prepared. Whoever cancels the start finds everything closed again."""
    async with AsyncExitStack() as closing:
        yield await _started(prepared, closing)


async def _started(prepared: Prepared, closing: AsyncExitStack) -> Running:
    settings, assembled, kept = prepared.settings, prepared.assembled, prepared.kept
    bound_values(settings.max_json_values)
    observed = observing(prepared.telemetry, key=prepared.auditing.key, published=lambda: service.published)
    observed.start(closing)
    observed.hear_logs(closing)
    engine = await _open(open_engine(kept.database, prepared.secrets), closing)
    store = engine.store
    spool = await _open(open_spool(kept.spool, prepared.secrets, small=store), closing)
    await prepared.identities.start()
    closing.push_async_callback(prepared.identities.close)
    meters = Meters()

    async def journal(call: ServedCall, tool: DeclaredTool) -> None:
        await service.journal(call, tool)

    retain = storage_of(assembled).retain
    controlled = controlling(
        engine,
        published=lambda: service.published,
        auditing=prepared.auditing,
        webhooks=prepared.webhooks,
        base_url=settings.public_url or f"http://{settings.host}:{settings.port}",
        closing=closing,
        announce=meters.announced,
        observer=observed.telemetry,
        validity=Validity(settings.bundle_grace, prepared.until),
        retained=_retained(retain),
    )
    revisions = Revisions(controlled, journal=journal, packages=settings.python_packages)
    closing.push_async_callback(revisions.close)
    published = await revisions.first(prepared.draft)
    lives = (retain.calls if retain else None) or DEFAULT_LIFE
    service = Service(
        published,
        store,
        spool,
        lives=lives,
        most_refusals=settings.max_refusals,
        shares_turns=_shares_turns(settings, kept),
        auditor=controlled.auditor,
        meter=meters,
        observer=observed.telemetry,
    )
    observed.hear(service.buses)
    closing.callback(HandlerGates(controlled.approvals).listen(service.buses))
    await controlled.begin(closing)
    recovered = await patiently(lambda: store.recover(_now()))
    shared = revisions.current.shared
    metering = Metering(meters, service, shared=shared, controlled=controlled, observing=observed, spool=spool)
    revisions.begin(service, metering)
    if sending := sending_metrics(prepared.telemetry, metering.read):
        sending.start()
        closing.push_async_callback(sending.close)
    expiring = Expiring(controlled.validity)
    expiring.start()
    closing.push_async_callback(expiring.close)
    sweeping = asyncio.create_task(Sweeper(store, spool).run())
    closing.push_async_callback(_ended, sweeping)
    return Running(
        service,
        settings,
        revisions,
        recovered,
        kept,
        spool,
        controlled,
        metering,
        observed,
        tuple(_told(prepared)),
    )


def _told(prepared: Prepared) -> Iterator[str]:
    yield from prepared.auditing.warnings
    if contents_held_back(telemetry_of(prepared.assembled), prepared.telemetry, prepared.environ):
        yield f"{CAPTURE} is not followed: contents of calls are only sent where a Telemetry document is in use"


class _Closable(Protocol):
    async def close(self) -> None: ...


_Opened = TypeVar("_Opened", bound=_Closable)


async def _open(opening: Coroutine[Any, Any, _Opened], closing: AsyncExitStack) -> _Opened:
    """What is being opened in a thread when the start is cancelled is opened, and closed again like everything else."""
    task = asyncio.create_task(opening)
    try:
        await asyncio.wait({task})
    finally:
        if not task.done():
            await asyncio.wait({task})
        if task.exception() is None:
            closing.push_async_callback(task.result().close)
    return task.result()


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _identity_documents(assembled: Assembled) -> list[IdentityProviderDocument]:
    """Those that the Gateway names, in its order."""
    documents = [each.spec for each in assembled.loaded.documents]
    named = {each.metadata.name: each for each in documents if isinstance(each, IdentityProviderDocument)}
    return [named[name] for name in gateway_of(assembled).spec.identity]


def telemetry_of(assembled: Assembled) -> TelemetrySpec | None:
    named = gateway_of(assembled).spec.telemetry
    documents = [each.spec for each in assembled.loaded.documents]
    found = {each.metadata.name: each.spec for each in documents if isinstance(each, TelemetryDocument)}
    return None if named is None else found[named]


def _shares_turns(settings: Settings, kept: Kept) -> bool:
    return settings.workers > 1 or isinstance(kept.database, PostgresDatabase)


def _retained(retain: Retain | None) -> Retained:
    given = {} if retain is None else {"approvals": retain.approvals, "quotas": retain.quotas, "audit": retain.audit}
    return Retained(**{name: value for name, value in given.items() if value is not None})


def _folders(kept: Kept) -> list[Path]:
    """Those of this machine that are written to."""
    database = [kept.database.parent] if isinstance(kept.database, Path) else []
    return [*database, *([kept.spool] if isinstance(kept.spool, Path) else [])]


def _now() -> datetime:
    return datetime.now(UTC)
