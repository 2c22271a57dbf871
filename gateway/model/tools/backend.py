"""Backends: the protocol of what runs behind a tool, and the data that crosses it.

The composition root decides which classes and libraries implement it.
"""

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from gateway.errors import ToolError
from gateway.model.caller import Principal
from gateway.model.schema.schema import NO_VALUE

if TYPE_CHECKING:  # policy checks load no turns and no spools
    from gateway.model.caller import CallerChannel
    from gateway.model.primitives.containers import DottedDict
    from gateway.model.tools.artifact import SpoolReader
    from gateway.model.turns.context import DispatchContext

BackendErrorKind = Literal["invalid", "not-permitted", "not-found", "conflict", "unavailable", "failed"]


class OutboundRequest(Protocol):
    """One traced request to another server. The backend sends `fields` with it, as headers or as `_meta` of MCP."""

    @property
    def fields(self) -> Mapping[str, str]: ...

    def identify(self, id: int, version: str | None) -> None:
        """Record the id of a JSON-RPC request, and the revision of MCP."""
        ...

    def end(self, *, status: int | None = None, error: str | None = None, code: int | None = None) -> None:
        """Record the response: its HTTP `status` or JSON-RPC error `code`; `error` is one word for a failure.

        Only the first call has an effect.
        """
        ...


class OutboundTracer(Protocol):
    """A tracer of a call: of its requests to other servers, and of the code that runs for it."""

    @property
    def fields(self) -> Mapping[str, str]:
        """Trace headers of the call itself, for a process that runs its function."""
        ...

    def activate(self) -> Callable[[], None]:
        """Make the call the current span of this context. The returned function undoes that."""
        ...

    def record_step(self, name: str, *, since: int, is_cached: bool | None = None) -> None:
        """Record a stage or a wait of the call that ends now. `since` is in nanoseconds since 1970.

        `is_cached`: whether its result is that of an earlier call, if that is known.
        """
        ...

    def record_failure(self, error: BaseException) -> None:
        """Record why the tool failed."""
        ...

    def http(self, method: str, *, scheme: str, host: str, port: int) -> OutboundRequest | None:
        """Start tracing an HTTP request. Paths are left out: they contain arguments, and may contain secrets."""
        ...

    def mcp(
        self, method: str, *, tool: str, upstream: str, host: str | None = None, port: int | None = None
    ) -> OutboundRequest | None: ...


class RefreshTracer(Protocol):
    """A tracer of the requests that the gateway sends to an upstream by itself, without a call."""

    def http(self, method: str, *, scheme: str, host: str, port: int) -> OutboundRequest | None: ...

    def mcp(self, method: str, *, host: str | None = None, port: int | None = None) -> OutboundRequest | None: ...

    def end(self, error: str | None = None) -> None:
        """End the round; `error` is one word for a failure."""
        ...


CURRENT_REFRESH: Final[ContextVar[RefreshTracer | None]] = ContextVar("current_refresh", default=None)
"""The round that asks an upstream now, if it is traced."""


@dataclass(slots=True)
class UpstreamMeta:
    """What an upstream sent beside a result. `meta` and `fields` are those that the gateway does not interpret."""

    structured: Any = NO_VALUE
    meta: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


class BackendCall(Protocol):
    """The part of a call that its backend may use: the way back to the caller, and a place for metadata."""

    client: "CallerChannel | None"
    aside: UpstreamMeta | None


IDEMPOTENCY_HEADER: Final = "idempotency-key"


@dataclass(slots=True)
class Invocation:
    """An authorised and validated call, with defaults filled in, as a backend receives it. Never modified in place.

    `keep` streams bytes into the spool as the call's result and returns their reader; it raises once the tool's
    `maxOutput` is exceeded. Backends report requests to other servers to `hops`, unless it is `None`.
    """

    tool: str
    args: Mapping[str, Any]
    principal: Principal
    ctx: "DispatchContext"
    meta: "DottedDict"
    id: str
    keep: Callable[[AsyncIterable[bytes] | Iterable[bytes] | bytes], "Awaitable[SpoolReader]"]
    idempotency_key: str | None = None
    hops: OutboundTracer | None = None
    idempotency_header: str = IDEMPOTENCY_HEADER
    """The header that carries the key to a backend that speaks HTTP."""
    call: BackendCall | None = None
    """The call that the gateway serves; `None` where a backend runs by itself."""

    def with_keep(self, keep: "Callable[[Any], Awaitable[SpoolReader]]") -> "Invocation":
        """Return a copy with another `keep`; `dataclasses.replace` would cost more than the rest of a retry stage."""
        return Invocation(
            self.tool,
            self.args,
            self.principal,
            self.ctx,
            self.meta,
            self.id,
            keep,
            self.idempotency_key,
            self.hops,
            self.idempotency_header,
            self.call,
        )


class BackendError(ToolError):
    """A backend failed. Stages decide by `word`; the message is safe to show to a model.

    `kind` tells operators what failed, if the causes of the error do not: a class of exceptions, a status code.
    `places` is the traceback of an error that another process raised.
    """

    code = "E_BACKEND_FAILED"
    status = 502
    default_message = "the backend failed"

    def __init__(
        self,
        word: BackendErrorKind,
        message: str,
        *,
        help: str | None = None,
        kind: str | None = None,
        places: str | None = None,
    ) -> None:
        super().__init__(message, help=help)
        self.word: BackendErrorKind = word
        self.kind = kind
        self.places = places


class Backend(Protocol):
    """The implementation of a tool. It only runs after a decision for that call."""

    def run(self, call: Invocation) -> "Awaitable[Any]":
        """Return text, bytes, media, a list of media, or the reader that `keep` returned. Raises `BackendError`."""
        ...

    async def close(self) -> None: ...


CallPipeline = Callable[[Invocation], Awaitable[Any]]


class CallStage(Protocol):
    """Wraps the stages after it: it may refuse, wait, repeat or answer itself."""

    async def __call__(self, call: Invocation, run: CallPipeline) -> Any:
        """Return the call's result. `run` runs everything the stage wraps, and may be called any number of times."""
        ...
