"""A small ticket service over HTTP: `HELPDESK_TOKEN=… python -m gateway.examples.helpdesk --port 8091`.

It listens on loopback only, asks every caller for the bearer token and forgets everything when it ends. It stands in
for the helpdesk, the payment service and the carrier that the example configuration calls. A command after `--` is run
beside it, with its address in HELPDESK_URL; both end together, and a service that cannot listen runs nothing.
"""

import argparse
import hmac
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from gateway.examples.shipments import find_shipments, shipment
from gateway.examples.tickets import MAX_FOUND, Desk, Refused, furnished

HOST: Final = "127.0.0.1"
MAX_BODY: Final = 64 << 10
_IDLE_SECONDS: Final = 30
_REQUESTER: Final = {"name": "Agent gateway", "email": "gateway@acme.example"}

_TICKETS: Final = "/api/v2/tickets"
_REFUNDS: Final = "/api/v2/refunds"
_SHIPMENTS: Final = "/freight/v1/shipments"
_ONE_TICKET: Final = re.compile(rf"{_TICKETS}/([^/]{{1,20}})")
_ONE_SHIPMENT: Final = re.compile(rf"{_SHIPMENTS}/([^/]{{1,20}})")

Answer = tuple[HTTPStatus, dict[str, Any]]


class HelpdeskServer(ThreadingHTTPServer):
    """One thread per connection; none of them keeps the process alive."""

    daemon_threads = True

    def __init__(self, port: int, token: str, desk: Desk) -> None:
        super().__init__((HOST, port), HelpdeskHandler)
        self.expected = f"Bearer {token}".encode()
        self.desk = desk

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no event; anything else is told without what the client sent."""
        error = sys.exc_info()[0]
        if error is not None and not issubclass(error, OSError):
            print(f"a request failed: {error.__name__}", file=sys.stderr)


class HelpdeskHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "helpdesk"
    sys_version = ""
    timeout = _IDLE_SECONDS
    server: HelpdeskServer

    def do_GET(self) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # nobody reads that body, so it must not pass for the next request
        self._serve({_TICKETS: self._search, _SHIPMENTS: self._find_shipments})

    def do_POST(self) -> None:
        self._serve({_TICKETS: self._open_ticket, _REFUNDS: self._refund})

    def log_message(self, format: str, *args: Any) -> None:
        """Silence: request lines carry what customers wrote."""

    def _serve(self, routes: Mapping[str, Callable[[], Answer]]) -> None:
        try:
            status, answer = self._answer(routes)
        except Refused as refused:
            status, answer = HTTPStatus(refused.status), {"error": refused.reason}
            self.close_connection = True  # a body may still be unread
        data = json.dumps(answer).encode("ascii")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Bearer realm="helpdesk"')
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "POST" if self.command == "GET" else "GET")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, routes: Mapping[str, Callable[[], Answer]]) -> Answer:
        given = self.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self.server.expected):
            raise Refused(401, "a valid bearer token is needed")
        path = urlsplit(self.path).path
        if path in routes:
            return routes[path]()
        if self.command == "GET" and (found := _ONE_TICKET.fullmatch(path)):
            return HTTPStatus.OK, {"ticket": self.server.desk.ticket(found[1])}
        if self.command == "GET" and (found := _ONE_SHIPMENT.fullmatch(path)):
            return HTTPStatus.OK, shipment(found[1])
        if path in (_TICKETS, _REFUNDS, _SHIPMENTS) or _ONE_TICKET.fullmatch(path) or _ONE_SHIPMENT.fullmatch(path):
            raise Refused(405, f"{self.command} is not possible here")
        raise Refused(404, "there is nothing at this path")

    def _asked(self) -> dict[str, str]:
        try:
            return dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True, max_num_fields=10))
        except ValueError:
            raise Refused(400, "the query string has too many parts") from None

    def _find_shipments(self) -> Answer:
        return HTTPStatus.OK, find_shipments(self._asked())

    def _search(self) -> Answer:
        asked = self._asked()
        query, limit = asked.get("query", ""), asked.get("limit", "10")
        if not query.strip():
            raise Refused(400, "'query' is the text to look for")
        if not re.fullmatch(r"[0-9]{1,2}", limit) or not 1 <= int(limit) <= MAX_FOUND:
            raise Refused(400, f"'limit' is a number from 1 to {MAX_FOUND}")
        return HTTPStatus.OK, {"tickets": self.server.desk.search(query, int(limit))}

    def _open_ticket(self) -> Answer:
        return HTTPStatus.CREATED, {"ticket": self.server.desk.open_ticket(self._body(), requester=_REQUESTER)}

    def _refund(self) -> Answer:
        return HTTPStatus.CREATED, {"refund": self.server.desk.refund(self._body())}

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"[0-9]{1,12}", length) or "Transfer-Encoding" in self.headers:
            raise Refused(411, "the length of the body is needed")
        if int(length) > MAX_BODY:
            raise Refused(413, f"a body has at most {MAX_BODY} bytes")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise Refused(400, "the body is a JSON object")
        return body


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway.examples.helpdesk", description=__doc__)
    parser.add_argument("--port", type=int, default=8091, help="port on loopback; 0 takes a free one")
    parser.add_argument("command", nargs="*", help="what to run beside it, after --")
    given = parser.parse_args(arguments)
    token = os.environ.get("HELPDESK_TOKEN", "")
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        print("HELPDESK_TOKEN is not set: give the token that callers must bring", file=sys.stderr)
        return 2
    try:
        server = HelpdeskServer(given.port, token, furnished())
    except (OSError, OverflowError) as error:
        another = "another port is given with --port, or make serve HELPDESK_PORT=…"
        print(f"cannot listen on port {given.port}: {error}; {another}", file=sys.stderr)
        return 1
    with server:
        return _beside(server, given.command) if given.command else _alone(server)


def _alone(server: HelpdeskServer) -> int:
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        print(f"helpdesk at {server.url}", flush=True)
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    return 0


def _beside(server: HelpdeskServer, command: Sequence[str]) -> int:
    """Serve for as long as a command runs; the exit code is its own."""
    Thread(target=server.serve_forever, daemon=True).start()
    print(f"helpdesk at {server.url}", flush=True)
    try:
        running = subprocess.Popen(command, env={**os.environ, "HELPDESK_URL": server.url})  # noqa: S603 - its own caller's
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda number, frame: running.terminate())
    signal.signal(signal.SIGINT, lambda number, frame: None)  # a terminal tells the command, too
    code = running.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
