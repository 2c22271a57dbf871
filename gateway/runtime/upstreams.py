"""The upstream servers of a project, for commands that speak to them without serving anything."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.config.loader import Loaded
from gateway.config.specs.upstreams import UpstreamDocument
from gateway.runtime.backends import Backends
from gateway.runtime.secrets import Secrets
from gateway.upstreams.registry import Upstreams


@asynccontextmanager
async def upstreams_of(loaded: Loaded, *, environ: Mapping[str, str], folder: Path) -> AsyncIterator[Upstreams]:
    """Connections to the MCP servers that documents declare, closed at the end. `folder` is that of the documents."""
    backends = Backends(Secrets(environ, folder), ())
    try:
        backends.connect(each.spec for each in loaded.documents if isinstance(each.spec, UpstreamDocument))
        yield backends.upstreams
    finally:
        await backends.close()


async def probed_status(loaded: Loaded, *, environ: Mapping[str, str], folder: Path) -> list[Mapping[str, Any]]:
    """How each server stands when it is asked from here, all at once."""
    async with upstreams_of(loaded, environ=environ, folder=folder) as upstreams:
        await asyncio.gather(*(upstreams.probe(each.name) for each in upstreams))
        return upstreams.status()
