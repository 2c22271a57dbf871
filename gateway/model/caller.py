"""The caller of a call: its principal, and the channel through which a tool sends it messages and asks it questions."""

from asyncio import AbstractEventLoop
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

AuthMethod = Literal["jwt", "token", "none"]


class Credential(NamedTuple):
    """How a caller was authenticated.

    `issuer` is the issuer of a signed token, else the name of the identity provider. `token_id` identifies the
    credential: a signed token's `jti`, or the SHA-256 of a token. It is used in keyed hashes only and never shown.
    """

    method: AuthMethod
    issuer: str | None = None
    token_id: str | None = None

    def __repr__(self) -> str:
        return f"Credential(method={self.method!r}, issuer={self.issuer!r})"


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. No caller is anonymous: the identity provider names callers that have no name of their own."""

    subject: str
    roles: frozenset[str] = frozenset()
    tenant: str | None = None
    joins_traces: bool = field(default=False, repr=False, compare=False)
    """Whether calls continue the trace that the caller names; otherwise their spans only link to that trace."""
    credential: Credential | None = field(default=None, repr=False, compare=False)
    """Ignored when principals are compared: a caller with two tokens is one principal."""
    names: frozenset[str] = field(init=False, repr=False, compare=False)
    """The subject and its roles. The authoriser adds roles that are inherited from these."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", self.roles | {self.subject})


LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
QuestionMethod = Literal["elicitation/create", "sampling/createMessage", "roots/list"]


@dataclass(frozen=True, slots=True)
class Question:
    """A question that only the caller can answer."""

    method: QuestionMethod
    params: Mapping[str, Any]

    @classmethod
    def form(cls, message: str, schema: Mapping[str, Any]) -> "Question":
        """Ask the person in front of the client to fill in a form; `schema` is a flat object of scalars."""
        return cls("elicitation/create", {"message": message, "requestedSchema": schema})

    @classmethod
    def url(cls, message: str, url: str, *, id: str) -> "Question":
        """Send the person to a web page, for answers that must not pass through the client."""
        return cls("elicitation/create", {"mode": "url", "message": message, "url": url, "elicitationId": id})

    @classmethod
    def sample(cls, messages: Sequence[Mapping[str, Any]], *, max_tokens: int, **more: Any) -> "Question":
        """Ask the client's model to continue a conversation."""
        return cls("sampling/createMessage", {"messages": list(messages), "maxTokens": max_tokens, **more})

    @classmethod
    def roots(cls) -> "Question":
        """Ask which folders the client works on."""
        return cls("roots/list", {})


class CallerChannel(Protocol):
    """The way back to the caller while a call runs. The transport provides it; its methods run in `loop` only."""

    @property
    def loop(self) -> AbstractEventLoop: ...

    @property
    def waits_for_answer(self) -> bool:
        """Whether the caller stays connected until it answers; otherwise its answer may reach another process."""
        ...

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """The MCP capabilities that the client declares."""
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """The `_meta` of the request, passed on unread."""
        ...

    @property
    def wants_progress(self) -> bool: ...

    @property
    def log_level(self) -> str | None:
        """The lowest level of log messages that the client wants."""
        ...

    def report_missing(self, needed: Mapping[str, Any]) -> None:
        """Report that the call needs these capabilities, if the protocol has an error for it."""
        ...

    def send_progress(self, progress: float, total: float | None, message: str | None) -> None: ...

    def send_log(self, level: LogLevel, data: Any, logger: str | None) -> None: ...

    def can_answer(self, question: Question) -> bool: ...

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        """Return one answer per question. Raises `CallerCannotAnswer` if the client lacks the capability."""
        ...
