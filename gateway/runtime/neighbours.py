"""The other processes that serve the same project: workers of this host, and gateways of the same database.

It puts the way to them between the edge and the paths of the data plane, and opens the listeners that they come in by.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from socket import socket

from gateway.runtime.affinity import Affinity
from gateway.runtime.peer_proof import ChannelKey
from gateway.runtime.peers import Addresses, Peers, host_of, named
from gateway.runtime.planes import Entrances, Planes, admission_of
from gateway.runtime.serving import InnerListener
from gateway.runtime.settings import Settings
from gateway.web.edge import App

Among = Callable[[App], Affinity]
"""What leads from a worker to the others."""


@dataclass(frozen=True, slots=True)
class PeerTerms:
    """How gateways of one database reach each other: this one's own URL, the others', and their common secret."""

    own: str
    addresses: Addresses
    key: ChannelKey


@dataclass(slots=True)
class Neighbours:
    settings: Settings
    among: Among | None = None
    terms: PeerTerms | None = None
    affinity: Affinity | None = field(default=None, init=False)
    peers: Peers | None = field(default=None, init=False)

    def route(self, paths: App) -> Entrances:
        """Peers are before workers: a request that another gateway passes on comes to any worker of this one."""
        public, from_workers = paths, None
        if self.among is not None:
            self.affinity = self.among(paths)
            public, from_workers = self.affinity.front, self.affinity.back
        if self.terms is None:
            return Entrances(public, from_workers=from_workers)
        self.peers = Peers(public, own=self.terms.own, addresses=self.terms.addresses, key=self.terms.key)
        return Entrances(self.peers.front, self.peers.back, from_workers)

    def listeners(self, planes: Planes, for_peers: socket | None) -> Iterator[InnerListener]:
        """Each has places of its own for requests; see `InnerListener`."""
        if self.affinity is not None and planes.from_workers is not None:
            yield InnerListener(
                self.affinity.listener(),
                self.affinity.key,
                self.affinity.name,
                {"forward": planes.from_workers, "control": self.affinity.control},
                admission_of(self.settings),
            )
        if self.terms is not None and planes.from_peers is not None and for_peers is not None:
            yield InnerListener(
                for_peers,
                self.terms.key,
                host_of(named(self.terms.own)),
                {"forward": planes.from_peers},
                admission_of(self.settings),
            )

    async def close(self) -> None:
        for each in (self.peers, self.affinity):
            if each is not None:
                await each.close()
