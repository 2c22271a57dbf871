"""A running gateway, asked over its REST API: which one, as whom, and what it refuses.

The token comes from a file or the environment, never from the command line, which every process of a host can read. It
is not sent where it could be overheard, and follows no redirect.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import typer

from gateway.cli.console import fail

_SECONDS: Final = 30
_MOST_BYTES: Final = 64 << 20
_TOKEN_VARIABLE: Final = "GATEWAY_TOKEN"  # noqa: S105 - the name of a variable, not a token

Url = Annotated[str, typer.Option(envvar="GATEWAY_URL", help="Where the gateway is.", metavar="URL", show_default=True)]
TokenFile = Annotated[
    Path | None,
    typer.Option(help=f"A file with your token; without it, the variable {_TOKEN_VARIABLE}.", show_default=False),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Send the token over plain HTTP to another host.")]

DEFAULT_URL: Final = "http://127.0.0.1:8080"


class Answered(Exception):
    """The gateway refused: its status, its stable code, and what it said."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(status)
        self.problem = problem
        self.status = status
        self.code = str(problem.get("code", ""))
        self.detail = str(problem.get("detail", f"the gateway answered {status}"))
        self.help = str(problem["help"]) if "help" in problem else None
        self.errors = [f"{each.get('at')}: {each.get('detail')}" for each in problem.get("errors", ())]


@dataclass(frozen=True, slots=True)
class Remote:
    url: str
    token: str | None = field(repr=False)

    def get(self, path: str, **query: Any) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        return self._asked(Request(f"{self.url}{path}{f'?{urlencode(given)}' if given else ''}"))  # noqa: S310 - checked

    def post(
        self, path: str, body: dict[str, Any], *, headers: Mapping[str, str] | None = None, seconds: float = _SECONDS
    ) -> Any:
        content = json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        return self._asked(Request(f"{self.url}{path}", data=content, headers=sent), seconds=seconds)  # noqa: S310 - checked

    def _asked(self, request: Request, *, seconds: float = _SECONDS) -> Any:
        """Raises `Answered`; ends the command if nothing answers that is a gateway."""
        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with build_opener(_NoRedirect).open(request, timeout=seconds) as response:
                return json.loads(response.read(_MOST_BYTES))
        except HTTPError as error:
            with error:
                raise Answered(error.code, _problem(error.read(_MOST_BYTES))) from None
        except (URLError, OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            fail(f"no gateway answers at {self.url} ({reason})", "start it, or say where it is with --url", code=1)
        except ValueError:
            fail(f"what answers at {self.url} is not a gateway", "say where it is with --url", code=1)


def remote_at(url: str, token_file: Path | None, *, insecure: bool) -> Remote:
    """The gateway of a command's options. Ends the command for options that cannot be meant."""
    base = url.rstrip("/")
    try:
        parts = urlsplit(base)
        host = parts.hostname
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        fail(f"{url!r} is not the URL of a gateway", "write it as https://gateway.example.com")
    token = _token(token_file)
    if token is not None and parts.scheme == "http" and not _is_here(host) and not insecure:
        fail("the token would be sent unencrypted to another host", "use https, or --insecure if the network is yours")
    return Remote(base, token)


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(_TOKEN_VARIABLE) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        fail(f"the token file {file} cannot be read ({type(error).__name__})", "check that it is there, and whose")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        fail(f"the token file {file} does not hold one token", "put the token alone into it")
    return token


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _problem(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class _NoRedirect(HTTPRedirectHandler):
    """The token is for this gateway, not for whatever it names."""

    def redirect_request(self, *args: Any, **named: Any) -> None:
        return None
