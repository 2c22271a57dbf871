"""`gateway serve`: the gateway itself, until somebody stops it."""

import asyncio
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket
from typing import Annotated, Any, Final

import typer

from gateway.audit.keys import PublicKey
from gateway.cli.console import err, fail, note, print_document
from gateway.cli.problems import print_problems
from gateway.cli.project import sources_of
from gateway.cli.unread import output_never_waits
from gateway.errors import GatewayError, ProgramError
from gateway.identity.providers import NobodyProvider
from gateway.runtime.bundled import LastGood, bundle_keys, source_of, state_folder
from gateway.runtime.logs import logs_as_lines
from gateway.runtime.neighbours import Among, Neighbours, PeerTerms
from gateway.runtime.peer_proof import ChannelKey
from gateway.runtime.planes import planes
from gateway.runtime.refusing import peer_key, refuse_shared_port
from gateway.runtime.reloading import Reloading, prepared_from
from gateway.runtime.running import ConfigInvalid, Prepared, Running, opened
from gateway.runtime.serving import Listeners, listener, run, serve, signals
from gateway.runtime.settings import Settings, default_of, expected_of, variable_of
from gateway.runtime.sourcing import Source, Taken
from gateway.runtime.stopping import Stopping
from gateway.runtime.workers import Workers

_WORKER: Final = "gateway.cli.worker"
_MOST_WARNINGS: Final = 20


def serve_gateway(
    configs: Annotated[
        Path | None, typer.Option(help="The project, or its folder of documents.", show_default=default_of("configs"))
    ] = None,
    policies: Annotated[Path | None, typer.Option(help="The folder of policies, if it is elsewhere.")] = None,
    environment: Annotated[str | None, typer.Option(help="Whose overlay to apply.")] = None,
    host: Annotated[str | None, typer.Option(help="Address of MCP and REST.", show_default=default_of("host"))] = None,
    port: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="Its port; 0 takes any that is free.", show_default=default_of("port")),
    ] = None,
    admin_host: Annotated[
        str | None, typer.Option(help="Address of health and status.", show_default=default_of("admin_host"))
    ] = None,
    admin_port: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER", help="Its port; 0 takes any that is free.", show_default=default_of("admin_port")
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="Processes that serve; one that dies is replaced.",
            show_default=default_of("workers"),
        ),
    ] = None,
    bundle: Annotated[
        str | None, typer.Option(metavar="FILE|URL", help="Serve a bundle instead of a folder; see gateway bundle.")
    ] = None,
    key: Annotated[
        list[Path] | None, typer.Option(help="A public key that the bundle may be signed with; give it more than once.")
    ] = None,
    require_signature: Annotated[
        bool | None,
        typer.Option(
            "--require-signature",
            help="Refuse a bundle that nobody has signed.",
            show_default=default_of("require_signature"),
        ),
    ] = None,
    last_good: Annotated[
        bool | None,
        typer.Option(
            "--last-good",
            help="Serve the last good revision if the present one is broken.",
            show_default=default_of("last_good"),
        ),
    ] = None,
    watch: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="Look that often for changes, and serve them.")
    ] = None,
) -> None:
    """Serve the configured catalogues over MCP and REST.

    Every option can also be given as an environment variable, such as GATEWAY_PORT; docs/settings.md tells of them, and
    of settings that are variables only. Exit codes: 0 stopped as asked, 1 the configuration has errors or the start was
    refused, 2 wrong use. A stop may be asked for by SIGTERM or SIGINT at any time; while the gateway is still starting,
    whatever is open by then is closed again.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    if bundle is not None and (configs is not None or policies is not None):
        fail("either a bundle is served or a folder", "leave out --bundle, or --configs and --policies")
    given |= {"bundle_keys": tuple(map(str, given.pop("key")))} if key else {}
    settings = _settings({name: value for name, value in given.items() if name != "key"})
    if settings.workers == 1:
        serve_here(settings, lambda: _bound(settings), say=print_document)
    else:
        code = _supervised(settings)
        if code:
            raise typer.Exit(code)
    with output_never_waits():
        note("stopped")


def serve_here(
    settings: Settings,
    sockets: Callable[[], Listeners],
    *,
    say: Callable[[str], object],
    up: Callable[[], None] = lambda: None,
    watch: Callable[[Stopping], None] = lambda stopping: None,
    goes_on: bool = False,
    worker: int | None = None,
    among: Among | None = None,
) -> None:
    """Serve in this process until it is stopped. `up` is told when it is up, `watch` may ask it to stop.

    `worker` and `among` are for one of several workers: which one it is, and what leads from each to the others.
    """
    try:
        # Outside of the loop, where a signal is obeyed at once: nothing is open yet.
        refuse_shared_port(settings)
        key = peer_key(settings)
        beginning = _Beginning.of(settings, goes_on=goes_on)
        with output_never_waits(), logs_as_lines(settings):
            run(_served(beginning, sockets, say, up=up, watch=watch, worker=worker, among=among, key=key))
    except ConfigInvalid as error:
        print_problems(err(), error.diagnostics, sources_of(settings.project))
        raise typer.Exit(1) from error
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    except OSError as error:
        fail(f"the gateway cannot listen: {error.strerror or error}", code=1)


def _supervised(settings: Settings) -> int:
    try:
        refuse_shared_port(settings)
        sockets = _bound(settings)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    with output_never_waits():
        return asyncio.run(Workers(settings, sockets, module=_WORKER, say=print_document).run())


class CannotListen(ProgramError):
    code = "E_CANNOT_LISTEN"
    default_message = "the gateway cannot listen"


def _bound(settings: Settings) -> Listeners:
    data = _listener(settings.host, settings.port, options="--host and --port")
    admin = _listener(settings.admin_host, settings.admin_port, options="--admin-host and --admin-port")
    place = settings.peer_place
    options = "GATEWAY_PEER_URL, or say where to listen with GATEWAY_PEER_LISTEN"
    return Listeners(data, admin, None if place is None else _listener(*place, options=options))


def _listener(host: str, port: int, *, options: str) -> socket:
    try:
        return listener(host, port)
    except OSError as error:
        message = f"the gateway cannot listen on {host}, port {port}: {error.strerror or error}"
        raise CannotListen(message, help=f"stop what listens there, or choose another with {options}") from error


def _settings(given: dict[str, Any]) -> Settings:
    """What was given on the command line, then the environment, then the defaults."""
    try:
        return Settings(**given)
    except ValueError as error:  # of the validation library's own kind: each problem names its setting
        problems = error.errors() if hasattr(error, "errors") else []
        told = "; ".join(_problem(each, given) for each in problems)
        fail(told or "a setting is wrong: settings are options, or variables that begin with GATEWAY_")


def _problem(found: Mapping[str, Any], given: Container[str]) -> str:
    """Where the setting was given, and what it should be. What it is, is not told."""
    setting = found["loc"][0]
    is_ours = found["type"] == "value_error"
    reason = found["ctx"]["error"] if is_ours else f"write {expected_of(setting)}"
    return f"{_option_of(setting) if setting in given else variable_of(setting)}: {reason}"


def _option_of(setting: str) -> str:
    return "--key" if setting == "bundle_keys" else f"--{setting.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What a start is made of, and where more of it comes from."""

    source: Source
    taken: Taken
    ready: Prepared
    last_good: LastGood

    @classmethod
    def of(cls, settings: Settings, *, goes_on: bool) -> "_Beginning":
        """`goes_on` is for a process that takes the place of one that ended: it serves what the others serve."""
        keys = bundle_keys(settings)
        source = source_of(settings, keys)
        taken, ready = (cls._again(source, settings, keys) if goes_on else None) or cls._found(source, settings, keys)
        taken.use()
        database = ready.kept.database
        folder = state_folder(settings, database=database if isinstance(database, Path) else None)
        return cls(source, taken, ready, LastGood(folder, keys))

    @staticmethod
    def _again(source: Source, settings: Settings, keys: Sequence[PublicKey]) -> tuple[Taken, Prepared] | None:
        """What is served now, if that is not what would be found anyway."""
        last = LastGood(state_folder(settings), keys)
        try:
            taken, ready = prepared_from(last, settings)
        except GatewayError:
            return None
        if source.is_still(taken):
            taken.release()
            return None
        return taken, ready

    @staticmethod
    def _found(source: Source, settings: Settings, keys: Sequence[PublicKey]) -> tuple[Taken, Prepared]:
        try:
            return prepared_from(source, settings)
        except GatewayError as error:
            if not settings.last_good:
                raise
            told = error.diagnostics if isinstance(error, ConfigInvalid) else ()
            print_problems(err(), told, sources_of(settings.project))
            note(f"{error.message}: the last good revision is served instead")
            folder = state_folder(settings)
            return prepared_from(LastGood(folder, keys, because=error.message), settings)


async def _served(
    beginning: _Beginning,
    sockets: Callable[[], Listeners],
    say: Callable[[str], object],
    *,
    up: Callable[[], None],
    watch: Callable[[Stopping], None],
    worker: int | None,
    among: Among | None,
    key: ChannelKey | None,
) -> None:
    stopping = Stopping()
    starting = _Starting(stopping)
    with signals(starting.ask, reload=starting.reload):
        watch(stopping)
        try:
            async with opened(beginning.ready) as gateway:
                starting.is_over = True
                if not stopping.times:
                    reloading = Reloading(
                        gateway, beginning.source, beginning.ready, beginning.taken, beginning.last_good
                    )
                    starting.reloading = reloading
                    serving = partial(_serve, reloading=reloading, say=say, up=up, worker=worker, among=among, key=key)
                    await serving(gateway, sockets(), stopping)
        except asyncio.CancelledError:
            if not starting.was_cut_short:
                raise


class _Starting:
    """Lets a signal end what has not come up yet; afterwards it asks whoever serves."""

    def __init__(self, stopping: Stopping) -> None:
        self.is_over = False
        self.was_cut_short = False
        self._stopping = stopping
        self._task = asyncio.current_task()
        self.reloading: Reloading | None = None

    def reload(self) -> None:
        """A start reads what is there; there is nothing to read again before it is over."""
        if self.reloading is not None and not self._stopping.times:
            self.reloading.ask("signal")

    def ask(self) -> None:
        self._stopping.ask()
        if self._task is not None and not self.is_over and not self.was_cut_short:
            self.was_cut_short = True
            self._task.cancel()


async def _serve(
    gateway: Running,
    sockets: Listeners,
    stopping: Stopping,
    *,
    reloading: Reloading,
    say: Callable[[str], object],
    up: Callable[[], None],
    worker: int | None,
    among: Among | None,
    key: ChannelKey | None,
) -> None:
    url, admin_url = _url(sockets.data), _url(sockets.admin)
    base_url = (gateway.settings.public_url or url).rstrip("/")

    async def started() -> None:
        _tell(gateway, base_url, admin_url, say=say)
        up()
        await reloading.begin()
        if gateway.settings.watch:
            reloading.watch(gateway.settings.watch.total_seconds())

    neighbours = Neighbours(gateway.settings, among, _peer_terms(gateway, key))
    both = planes(
        gateway,
        base_url=base_url,
        stopping=stopping,
        reloading=reloading,
        worker=worker,
        route=neighbours.route,
    )
    async with AsyncExitStack() as closing:
        closing.push_async_callback(reloading.close)
        closing.push_async_callback(neighbours.close)
        if neighbours.affinity is not None:
            neighbours.affinity.shares(both.metering, reloading)
        await serve(
            both,
            gateway.service.running,
            sockets=(sockets.data, sockets.admin),
            settings=gateway.settings,
            stopping=stopping,
            started=started,
            inner=list(neighbours.listeners(both, sockets.peers)),
        )


def _peer_terms(gateway: Running, key: ChannelKey | None) -> PeerTerms | None:
    """`None` where no other gateway can serve the same project."""
    own = gateway.settings.peer_url
    addresses = None if own is None else gateway.controlled.engine.joined(own)
    return None if own is None or addresses is None or key is None else PeerTerms(own, addresses, key)


def _url(bound: Any) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _tell(gateway: Running, url: str, admin_url: str, *, say: Callable[[str], object]) -> None:
    """Where it listens, what it offers, what deserves attention, and how to try it."""
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
    say("         callers see what the policy allows them of a catalogue")
    say(f"  admin  {admin_url}/readyz")
    _warn(gateway.warnings, say=say)
    for line in _attempts(gateway, url):
        say(line)


def _attempts(gateway: Running, url: str) -> Iterator[str]:
    """What to try first, with a place for the credential where one is needed."""
    catalogues = gateway.service.published.snapshot.catalogues.values()
    is_open = any(isinstance(each, NobodyProvider) for each in gateway.providers)
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


def _warn(warnings: Sequence[str], *, say: Callable[[str], object]) -> None:
    for warning in warnings[:_MOST_WARNINGS]:
        say(f"  warning: {warning}")
    if len(warnings) > _MOST_WARNINGS:
        say(f"  and {len(warnings) - _MOST_WARNINGS} more; see gateway check")
