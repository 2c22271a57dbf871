"""Client of a running gateway's REST API.

The token comes from a file or the environment, never from the command line, which every process of a host can read. It
is not sent unencrypted to another host, and no redirect is followed.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from gateway.cli.options import TOKEN_VARIABLE
from gateway.cli.output import fail
from gateway.http_client import HttpPolicy, is_loopback, send_blocking

_SECONDS: Final = 30.0
_MOST_BYTES: Final = 64 << 20


class GatewayRefusal(Exception):
    """The gateway answered with an error: its status, stable code and problem document."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(status)
        self.problem = problem
        self.status = status
        self.code = str(problem.get("code", ""))
        self.detail = str(problem.get("detail", f"the gateway answered {status}"))
        self.help = str(problem["help"]) if "help" in problem else None
        self.errors = [f"{each.get('at')}: {each.get('detail')}" for each in problem.get("errors", ())]


@dataclass(frozen=True, slots=True)
class GatewayClient:
    url: str
    token: str | None = field(repr=False)

    def get(self, path: str, **query: Any) -> Any:
        present = {name: value for name, value in query.items() if value is not None}
        return self._send(f"{path}{f'?{urlencode(present)}' if present else ''}")

    def post(
        self, path: str, body: dict[str, Any], *, headers: Mapping[str, str] | None = None, seconds: float = _SECONDS
    ) -> Any:
        content = json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        return self._send(path, sent, content, seconds=seconds)

    def _send(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        seconds: float = _SECONDS,
    ) -> Any:
        """Return the decoded response; raise `GatewayRefusal` for an error. End the command if no gateway answers."""
        sent = {**(headers or {}), **({} if self.token is None else {"Authorization": f"Bearer {self.token}"})}
        policy = HttpPolicy(idle=seconds, max_body=_MOST_BYTES)
        try:
            status, content = send_blocking(f"{self.url}{path}", policy, headers=sent, body=body)
            if 200 <= status < 300:
                return json.loads(content)
            raise GatewayRefusal(status, _parse_problem(content))
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            fail(f"no gateway answers at {self.url} ({reason})", "start it, or give its URL with --url", code=1)
        except ValueError:
            fail(f"the server at {self.url} is not a gateway", "give the URL of a gateway with --url", code=1)


def connect(url: str, token_file: Path | None, *, insecure: bool) -> GatewayClient:
    """Return a client for the options of a command. End the command if the URL or the token cannot be used."""
    base = url.rstrip("/")
    try:
        parts = urlsplit(base)
        host = parts.hostname
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        fail(f"{url!r} is not the URL of a gateway", "write it as https://gateway.example.com")
    token = _read_token(token_file)
    if token is not None and parts.scheme == "http" and not is_loopback(host) and not insecure:
        fail("the token would be sent unencrypted to another host", "use https, or --insecure if the network is yours")
    return GatewayClient(base, token)


def _read_token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        fail(f"the token file {file} cannot be read ({type(error).__name__})", "check its path and permissions")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        fail(f"the token file {file} does not hold exactly one token", "write the token into it, and nothing else")
    return token


def _parse_problem(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
