"""Who is asked about: `--as user:ana --role role:clerk`."""

import re
from typing import Annotated, Final

import typer

from gateway.cli.console import fail
from gateway.governance.names import SUBJECT_KINDS, SUBJECT_NAME
from gateway.governance.principals import Principal

_SUBJECT: Final = re.compile(rf"(?:{'|'.join(SUBJECT_KINDS)}):{SUBJECT_NAME}")
_ROLE: Final = re.compile(rf"role:{SUBJECT_NAME}")

As = Annotated[
    str | None, typer.Option("--as", metavar="SUBJECT", help="As this caller: user:ana.", show_default=False)
]
Roles = Annotated[
    list[str] | None,
    typer.Option("--role", metavar="ROLE", help="A role the caller was given; repeat for more.", show_default=False),
]


def caller(subject: str | None, roles: list[str] | None) -> Principal | None:
    """Whoever is named. Roles that policies give to the subject or to its roles come by themselves."""
    if subject is None:
        if roles:
            fail("--role needs --as", "a role is held by somebody: --as user:ana")
        return None
    if not _SUBJECT.fullmatch(subject):
        fail(f"{subject!r} is not a subject", "write one with its prefix: user:ana, agent:bot, service:billing")
    for role in roles or ():
        if not _ROLE.fullmatch(role):
            fail(f"{role!r} is not a role", "write it with its prefix: role:clerk")
    return Principal(subject, frozenset(roles or ()))
