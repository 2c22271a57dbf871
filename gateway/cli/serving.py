"""`gateway serve`: the gateway itself, until somebody stops it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import socket
from typing import Annotated, Any, Final

import typer

from gateway.cli.console import err, fail, note
from gateway.cli.problems import print_problems
from gateway.cli.project import sources_of
from gateway.errors import GatewayError
from gateway.runtime.affinity import Affinity
from gateway.runtime.planes import planes
from gateway.runtime.running import ConfigInvalid, Running, running
from gateway.runtime.serving import listener, run, serve
from gateway.runtime.settings import Settings
from gateway.runtime.stopping import Stopping
from gateway.runtime.workers import Workers

_WORKER: Final = "gateway.cli.worker"


def serve_gateway(
    configs: Annotated[Path | None, typer.Option(help="The project, or its folder of documents.")] = None,
    policies: Annotated[Path | None, typer.Option(help="The folder of policies, if it is elsewhere.")] = None,
    environment: Annotated[str | None, typer.Option(help="Whose overlay to apply.")] = None,
    host: Annotated[str | None, typer.Option(help="Address of MCP and REST.")] = None,
    port: Annotated[int | None, typer.Option(help="Its port; 0 takes any that is free.")] = None,
    admin_host: Annotated[str | None, typer.Option(help="Address of health and status.")] = None,
    admin_port: Annotated[int | None, typer.Option(help="Its port; 0 takes any that is free.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that serve; one that dies is replaced.")] = None,
) -> None:
    """Serve the configured catalogues over MCP and REST.

    Every option can also be given as an environment variable, such as GATEWAY_PORT. Exit codes: 0 stopped as asked,
    1 the configuration has errors or the start was refused, 2 wrong use.
    """
    settings = _settings({key: value for key, value in locals().items() if value is not None})
    if settings.workers == 1:
        serve_here(settings, lambda: _bound(settings), say=typer.echo)
    else:
        code = _supervised(settings)
        if code:
            raise typer.Exit(code)
    note("stopped")


def serve_here(
    settings: Settings,
    sockets: Callable[[], tuple[socket, socket]],
    *,
    say: Callable[[str], object],
    up: Callable[[], None] = lambda: None,
    watch: Callable[[Stopping], None] = lambda stopping: None,
    among: Callable[[Any], Affinity] | None = None,
) -> None:
    """Serve in this process until it is stopped. `up` is told when it is up, `watch` may ask it to stop.

    `among` is for one of several workers: what leads from each to the others.
    """
    try:
        run(_served(settings, sockets, say, up=up, watch=watch, among=among))
    except ConfigInvalid as error:
        print_problems(err(), error.diagnostics, sources_of(settings.project))
        raise typer.Exit(1) from error
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    except OSError as error:
        fail(f"the gateway cannot listen: {error.strerror or error}", code=1)


def _supervised(settings: Settings) -> int:
    try:
        sockets = _bound(settings)
    except OSError as error:
        fail(f"the gateway cannot listen: {error.strerror or error}", code=1)
    return asyncio.run(Workers(settings, sockets, module=_WORKER, say=typer.echo).run())


def _bound(settings: Settings) -> tuple[socket, socket]:
    return listener(settings.host, settings.port), listener(settings.admin_host, settings.admin_port)


def _settings(given: dict[str, Any]) -> Settings:
    """What was given on the command line, then the environment, then the defaults."""
    try:
        return Settings(**given)
    except ValueError as error:  # of the validation library's own kind: each problem names its setting
        problems = error.errors() if hasattr(error, "errors") else []
        told = "; ".join(f"{each['loc'][0]}: {each['msg']}" for each in problems) or "a setting is wrong"
        fail(told, "settings are options, or variables that begin with GATEWAY_")


async def _served(
    settings: Settings,
    sockets: Callable[[], tuple[socket, socket]],
    say: Callable[[str], object],
    *,
    up: Callable[[], None],
    watch: Callable[[Stopping], None],
    among: Callable[[Any], Affinity] | None,
) -> None:
    async with running(settings) as gateway:
        data, admin = sockets()
        url, admin_url = (_url(bound) for bound in (data, admin))
        stopping = Stopping()
        watch(stopping)
        base_url = (settings.public_url or url).rstrip("/")

        async def started() -> None:
            _tell(gateway, base_url, admin_url, say=say)
            up()

        both = planes(gateway, base_url=base_url, stopping=stopping)
        serving = partial(
            serve,
            calls=gateway.service.running,
            sockets=(data, admin),
            settings=settings,
            stopping=stopping,
            started=started,
        )
        if among is None:
            await serving(both)
            return
        affinity = among(both.data)
        try:
            await serving(replace(both, data=affinity.front), besides=[(affinity.back, affinity.listener())])
        finally:
            await affinity.close()


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
        say(f"  MCP    {url}{catalogue.path}/mcp   {catalogue.title or name}: {count} tools")
    say(f"  admin  {admin_url}/readyz")
    for warning in gateway.warnings:
        say(f"  warning: {warning}")
    first = next(iter(snapshot.catalogues), None)
    if first is not None:
        path = snapshot.catalogues[first].path
        say(f"try: curl {url}/v1/catalogues/{first}/tools")
        say(f"     npx @modelcontextprotocol/inspector --cli {url}{path}/mcp --transport http --method tools/list")
