"""Whoever observes requests and calls. What it is told changes nothing: it raises nothing and never waits.

Wires tell of requests, the service of calls. Without an observer none of this is asked for, and nothing else differs.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.governance.approvals import ApprovalRecord
from gateway.governance.ports import Hops
from gateway.governance.principals import Principal
from gateway.governance.records import StoredCall

if TYPE_CHECKING:
    from gateway.serving.current import ServedCall
    from gateway.serving.settled import Settled
    from gateway.snapshot import DeclaredTool

Peer = tuple[str, int]


class SeenDecision(Protocol):
    """Somebody is about to decide about a held call."""

    @property
    def traceparent(self) -> str: ...

    def decided(self, record: ApprovalRecord) -> None: ...


class SeenRequest(Protocol):
    """One request, from when it was read until it is answered."""

    def answered(self, *, code: int | None = None, status: int | None = None) -> None:
        """`code` is of a JSON-RPC error, `status` of an HTTP answer. Only the first time counts."""
        ...

    def abandoned(self) -> None:
        """Nobody was there to be answered."""
        ...

    def deciding(self) -> SeenDecision | None: ...


class SeenCall(Hops, Protocol):
    """One call, from when its tool is known until its record is durable."""

    @property
    def trace_id(self) -> str: ...

    @property
    def span_id(self) -> str: ...

    @property
    def traceparent(self) -> str: ...

    @property
    def is_sampled(self) -> bool:
        """Whether its span is exported however the call ends."""
        ...

    @property
    def shows_content(self) -> bool:
        """Whether `look_at` is wanted: only where somebody asked for contents."""
        ...

    async def look_at(self, settled: "Settled") -> None: ...

    def waited(self, rules: str, *, since: int, outcome: str) -> None:
        """People were asked, since that many nanoseconds after 1970, until now."""
        ...

    def dispatched(self, id: str | None, *, since: int, is_acked: bool) -> None:
        """The call was one dispatch among others of its turn, or stages stand around it; it began that many
        nanoseconds after 1970. It has no id where a stage refused it.
        """
        ...

    def settled(self, settled: "Settled") -> None: ...

    def failed(self, error: BaseException) -> None:
        """There is no record, or not this caller's to see."""
        ...


class Observer(Protocol):
    def received(
        self,
        method: str,
        principal: Principal,
        fields: Mapping[str, str],
        meta: object = None,
        peer: Peer | None = None,
        id: object = None,
        version: str | None = None,
        session: str | None = None,
        route: str | None = None,
    ) -> SeenRequest | None:
        """A request came. `fields` are its headers by lower-case name, `meta` what its body says of itself.

        With a `route` it is one of REST, whose method is HTTP's.
        """
        ...

    def called(
        self, call: "ServedCall", tool: "DeclaredTool | None", request: SeenRequest | None
    ) -> SeenCall | None: ...

    def abandoned(self, call: StoredCall) -> None:
        """The process that ran the call is gone. It is told from the thread that writes."""
        ...


def three_fields(headers: Any) -> dict[str, str]:
    """Of raw headers what says which trace a request belongs to; one that is there twice says nothing."""
    found: dict[str, str] = {}
    for name, value in headers:
        if name in _FIELDS:
            key = name.decode()
            found[key] = "" if key in found else value.decode("latin-1")
    return found


_FIELDS: Final = frozenset({b"traceparent", b"tracestate", b"baggage"})
