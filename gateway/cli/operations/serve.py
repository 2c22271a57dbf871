"""`gateway serve`: run the gateway until it is stopped."""

import asyncio
import gc
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket
from typing import Annotated, Any, Final

import typer

from gateway.app import (
    App,
    AppInputs,
    ClusterSetup,
    ConfigInvalid,
    LastGoodBundle,
    PeerSettings,
    ProjectCopy,
    ProjectSource,
    Reloader,
    RouterFactory,
    Settings,
    WorkerSupervisor,
    build_asgi_apps,
    bundle_keys,
    choose_source,
    configure_log_output,
    describe_expected,
    format_default,
    get_variable_name,
    load_peer_key,
    prepare_from_source,
    refuse_shared_port,
    start_app,
    state_folder,
)
from gateway.audit import VerifyKey
from gateway.cli.options import BundleKeysOption, PoliciesOption
from gateway.cli.output import fail, nonblocking_output, print_document, print_note, print_problems, stderr
from gateway.cli.project_loader import project_sources
from gateway.errors import GatewayError, ProgramError
from gateway.identity import AnonymousProvider
from gateway.server import BoundSockets, ChannelKey, ShutdownSignal, bind_socket, handle_signals, run_event_loop, serve

_WORKER: Final = "gateway.cli.operations.serve_worker"
_MOST_WARNINGS: Final = 20


def serve_gateway(
    configs: Annotated[
        Path | None,
        typer.Option(help="The project, or its folder of documents.", show_default=format_default("configs")),
    ] = None,
    policies: PoliciesOption = None,
    environment: Annotated[str | None, typer.Option(help="Whose overlay to apply.")] = None,
    host: Annotated[
        str | None, typer.Option(help="Address of MCP and REST.", show_default=format_default("host"))
    ] = None,
    port: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="Its port; 0 takes any free port.", show_default=format_default("port")),
    ] = None,
    admin_host: Annotated[
        str | None, typer.Option(help="Address of health and status.", show_default=format_default("admin_host"))
    ] = None,
    admin_port: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER", help="Its port; 0 takes any free port.", show_default=format_default("admin_port")
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="Processes that serve; one that dies is replaced.",
            show_default=format_default("workers"),
        ),
    ] = None,
    bundle: Annotated[
        str | None, typer.Option(metavar="FILE|URL", help="Serve a bundle instead of a folder; see gateway bundle.")
    ] = None,
    key: BundleKeysOption = None,
    require_signature: Annotated[
        bool | None,
        typer.Option(
            "--require-signature",
            help="Refuse a bundle that is not signed.",
            show_default=format_default("require_signature"),
        ),
    ] = None,
    last_good: Annotated[
        bool | None,
        typer.Option(
            "--last-good",
            help="Serve the last good revision if the current one has errors.",
            show_default=format_default("last_good"),
        ),
    ] = None,
    watch: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="Check for changes at this interval, and reload.")
    ] = None,
) -> None:
    """Serve the configured catalogues over MCP and REST.

    Every option can also be given as an environment variable, such as GATEWAY_PORT; docs/settings.md lists them, and
    settings that exist as variables only. SIGTERM and SIGINT stop the gateway, also while it is starting.

    Exit codes: 0 stopped by a signal, 1 the configuration has errors or the start was refused, 2 wrong use.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    if bundle is not None and (configs is not None or policies is not None):
        fail("a bundle and a folder cannot both be served", "leave out --bundle, or --configs and --policies")
    given |= {"bundle_keys": tuple(map(str, given.pop("key")))} if key else {}
    settings = _read_settings({name: value for name, value in given.items() if name != "key"})
    if settings.workers == 1:
        run_process(settings, lambda: _bind_sockets(settings), say=print_document)
    else:
        code = _run_workers(settings)
        if code:
            raise typer.Exit(code)
    with nonblocking_output():
        print_note("stopped")


def run_process(
    settings: Settings,
    sockets: Callable[[], BoundSockets],
    *,
    say: Callable[[str], object],
    up: Callable[[], None] = lambda: None,
    watch: Callable[[ShutdownSignal], None] = lambda stopping: None,
    goes_on: bool = False,
    worker: int | None = None,
    among: RouterFactory | None = None,
) -> None:
    """Serve in this process until it is stopped. `up` is called when it serves, `watch` may request a stop.

    One of several workers has an index, `worker`, and a router to the others, `among`.
    """
    gc.disable()  # until it serves: what a start loads stays in memory, and each collection would look at all of it
    try:
        # Before the event loop starts, a signal ends the process at once; nothing is open yet.
        refuse_shared_port(settings)
        key = load_peer_key(settings)
        initial = _InitialProject.of(settings, goes_on=goes_on)
        with nonblocking_output(), configure_log_output(settings):
            run_event_loop(_run_app(initial, sockets, say, up=up, watch=watch, worker=worker, among=among, key=key))
    except ConfigInvalid as error:
        print_problems(stderr(), error.diagnostics, project_sources(settings.project))
        raise typer.Exit(1) from error
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    except OSError as error:
        fail(f"the gateway cannot listen: {error.strerror or error}", code=1)


def _run_workers(settings: Settings) -> int:
    try:
        refuse_shared_port(settings)
        sockets = _bind_sockets(settings)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    with nonblocking_output():
        return asyncio.run(WorkerSupervisor(settings, sockets, module=_WORKER, say=print_document).run())


class ListenFailed(ProgramError):
    code = "E_CANNOT_LISTEN"
    default_message = "the gateway cannot listen"


def _bind_sockets(settings: Settings) -> BoundSockets:
    data = _bind_or_fail(settings.host, settings.port, options="--host and --port")
    admin = _bind_or_fail(settings.admin_host, settings.admin_port, options="--admin-host and --admin-port")
    place = settings.peer_place
    options = "GATEWAY_PEER_URL, or set the address to listen on with GATEWAY_PEER_LISTEN"
    return BoundSockets(data, admin, None if place is None else _bind_or_fail(*place, options=options))


def _bind_or_fail(host: str, port: int, *, options: str) -> socket:
    try:
        return bind_socket(host, port)
    except OSError as error:
        message = f"the gateway cannot listen on {host}, port {port}: {error.strerror or error}"
        raise ListenFailed(message, help=f"free the port, or choose another address with {options}") from error


def _read_settings(given: dict[str, Any]) -> Settings:
    """Return the settings: from the command line, else from the environment, else the defaults."""
    try:
        return Settings(**given)
    except ValueError as error:  # a pydantic ValidationError: each problem names its setting
        problems = error.errors() if hasattr(error, "errors") else []
        message = "; ".join(_format_problem(each, given) for each in problems)
        fail(message or "a setting is invalid: settings are options, or variables that begin with GATEWAY_")


def _format_problem(found: Mapping[str, Any], given: Container[str]) -> str:
    """Return where the setting was given and which value is expected. The given value may be secret."""
    setting = found["loc"][0]
    is_ours = found["type"] == "value_error"
    reason = found["ctx"]["error"] if is_ours else f"write {describe_expected(setting)}"
    return f"{_option_of(setting) if setting in given else get_variable_name(setting)}: {reason}"


def _option_of(setting: str) -> str:
    return "--key" if setting == "bundle_keys" else f"--{setting.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class _InitialProject:
    """The project that is served first, where it came from, and where its last good revision is stored."""

    source: ProjectSource
    taken: ProjectCopy
    ready: AppInputs
    last_good: LastGoodBundle

    @classmethod
    def of(cls, settings: Settings, *, goes_on: bool) -> "_InitialProject":
        """Read the project. With `goes_on`, the process replaces one that ended: it serves what the others serve."""
        keys = bundle_keys(settings)
        source = choose_source(settings, keys)
        taken, ready = (cls._resume(source, settings, keys) if goes_on else None) or cls._load(source, settings, keys)
        taken.use()
        database = ready.kept.database
        folder = state_folder(settings, database=database if isinstance(database, Path) else None)
        return cls(source, taken, ready, LastGoodBundle(folder, keys))

    @staticmethod
    def _resume(
        source: ProjectSource, settings: Settings, keys: Sequence[VerifyKey]
    ) -> tuple[ProjectCopy, AppInputs] | None:
        """Return the served revision, or `None` if it cannot be loaded or the source still has the same."""
        last = LastGoodBundle(state_folder(settings), keys)
        try:
            taken, ready = prepare_from_source(last, settings)
        except GatewayError:
            return None
        if source.is_unchanged(taken):
            taken.release()
            return None
        return taken, ready

    @staticmethod
    def _load(source: ProjectSource, settings: Settings, keys: Sequence[VerifyKey]) -> tuple[ProjectCopy, AppInputs]:
        try:
            return prepare_from_source(source, settings)
        except GatewayError as error:
            if not settings.last_good:
                raise
            problems = error.diagnostics if isinstance(error, ConfigInvalid) else ()
            print_problems(stderr(), problems, project_sources(settings.project))
            print_note(f"{error.message}: the last good revision is served instead")
            folder = state_folder(settings)
            return prepare_from_source(LastGoodBundle(folder, keys, because=error.message), settings)


async def _run_app(
    initial: _InitialProject,
    sockets: Callable[[], BoundSockets],
    say: Callable[[str], object],
    *,
    up: Callable[[], None],
    watch: Callable[[ShutdownSignal], None],
    worker: int | None,
    among: RouterFactory | None,
    key: ChannelKey | None,
) -> None:
    stopping = ShutdownSignal()
    signals = _SignalHandler(stopping)
    with handle_signals(signals.ask, reload=signals.reload):
        watch(stopping)
        try:
            async with start_app(initial.ready) as gateway:
                signals.is_over = True
                if not stopping.times:
                    reloading = Reloader(gateway, initial.source, initial.ready, initial.taken, initial.last_good)
                    signals.reloading = reloading
                    serving = partial(_serve, reloading=reloading, say=say, up=up, worker=worker, among=among, key=key)
                    await serving(gateway, sockets(), stopping)
        except asyncio.CancelledError:
            if not signals.was_cut_short:
                raise


class _SignalHandler:
    """Handler of signals: it cancels a start that is not over, and later requests a stop or a reload."""

    def __init__(self, stopping: ShutdownSignal) -> None:
        self.is_over = False
        self.was_cut_short = False
        self._stopping = stopping
        self._task = asyncio.current_task()
        self.reloading: Reloader | None = None

    def reload(self) -> None:
        """Request a reload, unless the gateway is still starting (it reads the project anyway) or stopping."""
        if self.reloading is not None and not self._stopping.times:
            self.reloading.request("signal")

    def ask(self) -> None:
        self._stopping.request()
        if self._task is not None and not self.is_over and not self.was_cut_short:
            self.was_cut_short = True
            self._task.cancel()


async def _serve(
    gateway: App,
    sockets: BoundSockets,
    stopping: ShutdownSignal,
    *,
    reloading: Reloader,
    say: Callable[[str], object],
    up: Callable[[], None],
    worker: int | None,
    among: RouterFactory | None,
    key: ChannelKey | None,
) -> None:
    url, admin_url = _url(sockets.data), _url(sockets.admin)
    base_url = (gateway.settings.public_url or url).rstrip("/")

    async def on_started() -> None:
        _print_addresses(gateway, base_url, admin_url, say=say)
        up()
        await reloading.begin()
        if gateway.settings.watch:
            reloading.watch(gateway.settings.watch.total_seconds())

    members = ClusterSetup(gateway.settings, among, _peer_settings(gateway, key))
    both = build_asgi_apps(
        gateway,
        base_url=base_url,
        stopping=stopping,
        reloading=reloading,
        worker=worker,
        route=members.route,
    )
    async with AsyncExitStack() as closing:
        closing.push_async_callback(reloading.close)
        closing.push_async_callback(members.close)
        if members.affinity is not None:
            members.affinity.connect(both.metering, reloading)
        await serve(
            both,
            gateway.service.running,
            sockets=(sockets.data, sockets.admin),
            grace=gateway.settings.grace,
            stopping=stopping,
            started=on_started,
            inner=list(members.listeners(both, sockets.peers)),
        )


def _peer_settings(gateway: App, key: ChannelKey | None) -> PeerSettings | None:
    """Return the terms of the connections to other gateways, or `None` if none can serve the same project."""
    own = gateway.settings.peer_url
    addresses = None if own is None else gateway.controlled.engine.join_cluster(own)
    return None if own is None or addresses is None or key is None else PeerSettings(own, addresses, key)


def _url(bound: Any) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _print_addresses(gateway: App, url: str, admin_url: str, *, say: Callable[[str], object]) -> None:
    """Print where the gateway listens, what it serves, its warnings, and how to try it."""
    published = gateway.service.published
    snapshot = published.snapshot
    say(f"{snapshot.name}, revision {snapshot.short_revision}")
    say(f"  REST   {url}/v1      reference at {url}/v1/docs")
    for name, catalogue in snapshot.catalogues.items():
        count = len(published.catalogues[name].registry.all())
        tools = "1 tool" if count == 1 else f"{count} tools"
        is_mcp, is_default = "mcp" in catalogue.protocols, name == snapshot.default_catalogue
        where = f"MCP    {url}{catalogue.path}/mcp" if is_mcp else f"REST   {url}/v1/catalogues/{name}"
        also = f", also at {url}/mcp" if is_mcp and is_default else ""
        say(f"  {where}   {catalogue.title or name}: {tools} in the catalogue{also}")
    say("         a caller sees the tools of a catalogue that the policy allows")
    say(f"  admin  {admin_url}/readyz")
    _print_warnings(gateway.warnings, say=say)
    for line in _example_commands(gateway, url):
        say(line)


def _example_commands(gateway: App, url: str) -> Iterator[str]:
    """Yield commands to try first, with a placeholder for the token where one is needed."""
    catalogues = gateway.service.published.snapshot.catalogues.values()
    is_open = any(isinstance(each, AnonymousProvider) for each in gateway.providers)
    by_http = next((each.name for each in catalogues if "http" in each.protocols), None)
    by_mcp = next((each.path for each in catalogues if "mcp" in each.protocols), None)
    label = "try: "
    if by_http is not None:
        bearer = "" if is_open else "-H 'Authorization: Bearer TOKEN' "
        yield f"{label}curl {bearer}{url}/v1/catalogues/{by_http}/tools"
        label = " " * len(label)
    if by_mcp is not None:
        bearer = "" if is_open else " --header 'Authorization: Bearer TOKEN'"
        options = f"--transport http{bearer} --method tools/list"
        yield f"{label}npx @modelcontextprotocol/inspector@latest --cli {url}{by_mcp}/mcp {options}"
        yield f"{' ' * len(label)}(the Inspector needs Node 22.19 or newer)"


def _print_warnings(warnings: Sequence[str], *, say: Callable[[str], object]) -> None:
    for warning in warnings[:_MOST_WARNINGS]:
        say(f"  warning: {warning}")
    if len(warnings) > _MOST_WARNINGS:
        say(f"  and {len(warnings) - _MOST_WARNINGS} more; run gateway check to see them")
