"""Connects this process to others of its project: workers of this host, and gateways of the same database.

`ClusterMembers` inserts the routers to them into the data plane, and opens the listeners for their requests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from socket import socket

from gateway.app.asgi_apps import AsgiApps, RoutedApps, build_admission
from gateway.app.cluster.peer_router import PeerAddresses, PeerRouter, derive_peer_id, host_of
from gateway.app.cluster.worker_router import WorkerRouter
from gateway.app.settings import Settings
from gateway.server import AsgiApp, ChannelKey, PeerListener

RouterFactory = Callable[[AsgiApp], WorkerRouter]
"""Builds the router from a worker to the others."""


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """How gateways of one database reach each other: their URLs and the shared secret."""

    own: str
    addresses: PeerAddresses
    key: ChannelKey


@dataclass(slots=True)
class ClusterMembers:
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
