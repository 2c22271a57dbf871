"""The principal of a request: subject, roles and tenant, and the credential that authenticated it."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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
