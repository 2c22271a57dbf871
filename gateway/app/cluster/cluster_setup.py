"""The other members of a cluster: workers of this host, and gateways of the same database.

`ClusterSetup` connects this process to them: it inserts the routers to them into the data plane, and opens the
listeners for their requests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from socket import socket
from typing import Final

from gateway.app.asgi_apps import AsgiApps, RoutedApps, build_admission
from gateway.app.cluster.peer_router import PeerAddresses, PeerRouter, derive_peer_id, host_of
from gateway.app.cluster.worker_router import WorkerRouter
from gateway.app.settings import Settings
from gateway.app.startup_checks import StartRefused
from gateway.server import MIN_SECRET_BYTES, AsgiApp, ChannelKey, PeerListener

RouterFactory = Callable[[AsgiApp], WorkerRouter]
"""Builds the router from a worker to the others."""

_MAX_KEY: Final = 4096


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """How gateways of one database reach each other: their URLs and the shared secret."""

    own: str
    addresses: PeerAddresses
    key: ChannelKey


def load_peer_key(settings: Settings) -> ChannelKey | None:
    """Return the key that gateways of one database authenticate with; `None` without a peer URL."""
    if settings.peer_url is None:
        return None
    path = settings.peer_key_file
    if path is None:
        raise StartRefused(
            "GATEWAY_PEER_URL needs a secret that the gateways share",
            help="set GATEWAY_PEER_KEY_FILE to a file with the same 32 random bytes or more for all of them",
        )
    try:
        with path.open("rb") as file:
            secret = file.read(_MAX_KEY + 1).rstrip(b"\r\n")
    except OSError as error:
        raise StartRefused(
            f"GATEWAY_PEER_KEY_FILE: {path} cannot be read ({type(error).__name__})",
            help="check its path and permissions",
        ) from None
    if not MIN_SECRET_BYTES <= len(secret) <= _MAX_KEY:
        raise StartRefused(
            f"GATEWAY_PEER_KEY_FILE: {path} has fewer than {MIN_SECRET_BYTES} bytes, or too many",
            help=f"write one with: openssl rand -hex {MIN_SECRET_BYTES} > {path}",
        )
    return ChannelKey(secret)


@dataclass(slots=True)
class ClusterSetup:
    settings: Settings
    among: RouterFactory | None = None
    terms: PeerSettings | None = None
    affinity: WorkerRouter | None = field(default=None, init=False)
    peers: PeerRouter | None = field(default=None, init=False)

    def route(self, paths: AsgiApp) -> RoutedApps:
        """Insert the routers. Peers come before workers: another gateway forwards to any worker of this one."""
        public, from_workers = paths, None
        if self.among is not None:
            self.affinity = self.among(paths)
            public, from_workers = self.affinity.route, self.affinity.serve_forwarded
        if self.terms is None:
            return RoutedApps(public, from_workers=from_workers)
        self.peers = PeerRouter(public, own=self.terms.own, addresses=self.terms.addresses, key=self.terms.key)
        return RoutedApps(self.peers.front, self.peers.back, from_workers)

    def listeners(self, planes: AsgiApps, for_peers: socket | None) -> Iterator[PeerListener]:
        """Yield the listeners for workers and peers, each with its own admission limit."""
        if self.affinity is not None and planes.from_workers is not None:
            yield PeerListener(
                self.affinity.listener(),
                self.affinity.key,
                self.affinity.name,
                {"forward": planes.from_workers, "control": self.affinity.control},
                build_admission(self.settings),
            )
        if self.terms is not None and planes.from_peers is not None and for_peers is not None:
            yield PeerListener(
                for_peers,
                self.terms.key,
                host_of(derive_peer_id(self.terms.own)),
                {"forward": planes.from_peers},
                build_admission(self.settings),
            )

    async def close(self) -> None:
        for each in (self.peers, self.affinity):
            if each is not None:
                await each.close()
