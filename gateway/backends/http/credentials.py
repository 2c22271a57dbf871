"""Credentials of a request: read at each call, never shown."""

import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gateway.model import BackendError

_SENDABLE: Final = re.compile(r"[\x20-\x7e]+")

Secret = Callable[[], str]


@dataclass(frozen=True, slots=True)
class BearerAuth:
    token: Secret = field(repr=False)

    def header(self) -> tuple[str, str, str]:
        token = reveal_secret(self.token)
        return "Authorization", f"Bearer {token}", token


@dataclass(frozen=True, slots=True)
class BasicAuth:
    username: str
    password: Secret = field(repr=False)

    def header(self) -> tuple[str, str, str]:
        password = reveal_secret(self.password)
        pair = b64encode(f"{self.username}:{password}".encode()).decode("ascii")
        return "Authorization", f"Basic {pair}", password


@dataclass(frozen=True, slots=True)
class HeaderAuth:
    name: str
    value: Secret = field(repr=False)

    def header(self) -> tuple[str, str, str]:
        value = reveal_secret(self.value)
        return self.name, value, value


@dataclass(frozen=True, slots=True)
class QueryAuth:
    """A key in the query, which server logs store: for services that accept it nowhere else."""

    name: str
    value: Secret = field(repr=False)


@dataclass(frozen=True, slots=True)
class CookieAuth:
    name: str
    value: Secret = field(repr=False)


Auth = BearerAuth | BasicAuth | HeaderAuth
"""`header` returns the name, the value, and the secret in the value, which no message may quote."""


def reveal_secret(secret: Secret) -> str:
    try:
        value = secret()
    except Exception as error:  # a secret store may fail in any way
        raise BackendError("unavailable", "the credentials for the service cannot be read") from error
    if not _SENDABLE.fullmatch(value):
        raise BackendError("unavailable", "the credentials for the service cannot be sent in a header")
    return value
