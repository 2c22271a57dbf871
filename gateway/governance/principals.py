"""Who is asking: one subject, the roles it was given, and the tenant it belongs to; and how that is known."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

AuthMethod = Literal["jwt", "token", "none"]


class Credential(NamedTuple):
    """How a caller was recognised: by what, on whose word, and by which credential.

    `issuer` is that of a signed token, else the name of the provider. `token_id` names the credential, which it is not:
    a signed token's `jti`, or the SHA-256 of a token. It is for keyed hashes, and shown to nobody.
    """

    method: AuthMethod
    issuer: str | None = None
    token_id: str | None = None

    def __repr__(self) -> str:
        return f"Credential(method={self.method!r}, issuer={self.issuer!r})"


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. There is no anonymous one: whoever has no name of their own is given one by the identity provider."""

    subject: str
    roles: frozenset[str] = frozenset()
    tenant: str | None = None
    joins_traces: bool = field(default=False, repr=False, compare=False)
    """Whether calls go on in the trace that the caller names; otherwise that trace is only linked to."""
    credential: Credential | None = field(default=None, repr=False, compare=False)
    """How that is known. It makes no other caller: whoever has two tokens is one."""
    names: frozenset[str] = field(init=False, repr=False, compare=False)
    """Everything the caller is at once; roles that roles bring with them are the authoriser's to follow."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", self.roles | {self.subject})
