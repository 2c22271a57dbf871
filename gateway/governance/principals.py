"""Who is asking: one subject, the roles it was given, and the tenant it belongs to."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. There is no anonymous one: whoever has no name of their own is given one by the identity provider."""

    subject: str
    roles: frozenset[str] = frozenset()
    tenant: str | None = None
    joins_traces: bool = field(default=False, repr=False, compare=False)
    """Whether calls go on in the trace that the caller names; otherwise that trace is only linked to."""
    names: frozenset[str] = field(init=False, repr=False, compare=False)
    """Everything the caller is at once; roles that roles bring with them are the authoriser's to follow."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", self.roles | {self.subject})
