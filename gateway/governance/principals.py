"""Who is asking: one subject, the roles it was given, and the tenant it belongs to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. There is no anonymous one: whoever has no name of their own is given one by the identity provider."""

    subject: str
    roles: frozenset[str] = frozenset()
    tenant: str | None = None

    @property
    def names(self) -> frozenset[str]:
        """Everything the caller is at once; roles that roles bring with them are the authoriser's to follow."""
        return self.roles | {self.subject}
