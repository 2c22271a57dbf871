"""The protocols governance needs from outside, and the data that crosses them.

Who implements them, and with which library, is decided where the process is put together.
"""

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from gateway.errors import ToolError
from gateway.governance.diagnostics import Position
from gateway.governance.principals import Principal

if TYPE_CHECKING:  # whoever only asks the policy does not wait for turns and spools
    from gateway.core.context import DispatchContext
    from gateway.core.registry import Registry
    from gateway.core.spool import SpoolReader

ErrorWord = Literal["invalid", "not-permitted", "not-found", "conflict", "unavailable", "failed"]


class AccessRequest(NamedTuple):
    """One question: may whoever goes by these names do this, to this object of this tier, in this catalogue?

    `names` is everything the caller is at once, the subject and all its roles: asked one by one, a role without
    a deny row would overrule another role's deny. It is a tuple because one is made, and looked up, for every call.
    """

    names: frozenset[str]
    catalogue: str
    object: str
    action: str
    tier: str


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """The answer and why: `row` and `subject` are of the policy row that decided, `None` if no row did."""

    allowed: bool
    reason: str
    row: Position | None = None
    subject: str | None = None
    is_unanswered: bool = field(default=False, compare=False)
    """Whether the policy could not be asked, which is no permission to go by another row."""


class Authoriser(Protocol):
    def held_by(self, names: frozenset[str]) -> frozenset[str]:
        """The names and every role that comes with them."""
        ...

    def decide(self, request: AccessRequest) -> AccessDecision:
        """Always answers: whatever goes wrong on the way is a denial with a reason, never an exception."""
        ...


class Hop(Protocol):
    """One request to somebody else, as it is observed. `fields` go with it: headers, or `_meta` of MCP."""

    @property
    def fields(self) -> Mapping[str, str]: ...

    def end(self, *, status: int | None = None, error: str | None = None, code: int | None = None) -> None:
        """`status` is what was answered, or the `code` of a JSON-RPC error; `error` is one word for what went wrong.

        Only the first time counts.
        """
        ...


class Hops(Protocol):
    """Whoever observes requests that a call makes to somebody else."""

    def http(self, method: str, *, scheme: str, host: str, port: int) -> Hop | None:
        """Paths are left out: values of calls are in them, and secrets of documents may be."""
        ...

    def mcp(
        self, method: str, *, tool: str, upstream: str, host: str | None = None, port: int | None = None
    ) -> Hop | None: ...


IDEMPOTENCY_HEADER: Final = "idempotency-key"


@dataclass(slots=True)
class Invocation:
    """A call on its way to a backend: authorised, validated, with defaults filled in. It is replaced, never changed.

    `keep` streams bytes into the spool as the call's result and gives what reads them; it raises once the tool's
    `maxOutput` is exceeded. Backends tell `hops`, if there are any, of requests to somebody else.
    """

    tool: str
    args: Mapping[str, Any]
    principal: Principal
    ctx: "DispatchContext"
    meta: "Registry"
    id: str
    keep: Callable[[AsyncIterable[bytes] | Iterable[bytes]], "Awaitable[SpoolReader]"]
    idempotency_key: str | None = None
    hops: Hops | None = None
    idempotency_header: str = IDEMPOTENCY_HEADER
    """In which header a backend that speaks HTTP is told the key."""


class BackendFailed(ToolError):
    """A backend could not do it. `word` is what stages decide by; the message is safe to show to a model."""

    code = "E_BACKEND_FAILED"
    status = 502
    default_message = "the backend failed"

    def __init__(self, word: ErrorWord, message: str, *, help: str | None = None) -> None:
        super().__init__(message, help=help)
        self.word: ErrorWord = word


class Backend(Protocol):
    """What runs when a tool is called. It is never reached without a decision for that very call."""

    def run(self, call: Invocation) -> "Awaitable[Any]":
        """Text, bytes, media, a list of media, or the reader of what was kept. Raises `BackendFailed`."""
        ...

    async def close(self) -> None: ...
