"""A small ticket service over HTTP: `HELPDESK_TOKEN=… python -m gateway.examples.helpdesk_service --port 8091`.

It listens on loopback only, requires the bearer token, and stores everything in memory. It simulates the helpdesk, the
payment service and the carrier that the example configuration calls. A command after `--` runs in parallel, with the
URL of the service in HELPDESK_URL; both end together. If the service cannot listen, the command does not run.
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
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Lock, Thread
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

MAX_RECORDS: Final = 10_000
MAX_FOUND: Final = 50
PRIORITIES: Final = ("low", "normal", "high")
CURRENCIES: Final = ("EUR", "GBP", "USD")

Record = dict[str, Any]


class HelpdeskError(Exception):
    """A request that cannot be fulfilled, as an HTTP status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(slots=True)
class HelpdeskStore:
    """Tickets and refunds of one service. All methods are thread-safe."""

    _tickets: dict[int, Record] = field(default_factory=dict)
    _refunds: dict[str, Record] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=lambda: count(1001))
    _lock: Lock = field(default_factory=Lock)

    def open_ticket(self, wanted: Mapping[str, Any], *, requester: Mapping[str, str]) -> Record:
        _refuse_unknown(wanted, ("subject", "body", "priority"))
        subject, body = _text(wanted, "subject", longest=200), _text(wanted, "body", longest=20_000)
        priority = _choice(wanted, "priority", PRIORITIES) if "priority" in wanted else "normal"
        with self._lock:
            _refuse_full(self._tickets)
            number = next(self._numbers)
            self._tickets[number] = {
                "number": number,
                "subject": subject,
                "body": body,
                "priority": priority,
                "state": "open",
                "requester": dict(requester),
            }
            return self._tickets[number]

    def ticket(self, number: str) -> Record:
        with self._lock:
            found = self._tickets.get(int(number)) if number.isascii() and number.isdigit() else None
        if found is None:
            raise HelpdeskError(404, "the ticket does not exist")
        return found

    def search(self, query: str, limit: int = 10) -> list[Record]:
        """Return the newest tickets whose subject or body contains the text, ignoring case."""
        wanted = query.casefold()
        with self._lock:
            newest = [*reversed(self._tickets.values())]
        found = (each for each in newest if wanted in f"{each['subject']}\n{each['body']}".casefold())
        return [ticket for ticket, _ in zip(found, range(limit), strict=False)]

    def refund(self, wanted: Mapping[str, Any]) -> Record:
        """Refund an order once. A second refund of the same order raises a conflict."""
        _refuse_unknown(wanted, ("order", "amount", "currency"))
        order, currency = _text(wanted, "order", longest=40), _choice(wanted, "currency", CURRENCIES)
        amount = wanted.get("amount")
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount <= 100_000:
            raise HelpdeskError(400, "'amount' is a number above 0 and at most 100000")
        with self._lock:
            if order in self._refunds:
                raise HelpdeskError(409, f"order {order} is already refunded")
            _refuse_full(self._refunds)
            refund = {"number": f"R-{len(self._refunds) + 1}", "order": order, "amount": amount, "currency": currency}
            self._refunds[order] = {**refund, "account": "DE02 1203 0000 0000 2020 51"}
            return self._refunds[order]


def sample_store() -> HelpdeskStore:
    """Return a store with some sample tickets."""
    desk = HelpdeskStore()
    for name, email, subject, body in (
        ("Miriam Falk", "miriam@falk.example", "Chair squeaks", "The new office chair squeaks when I lean back."),
        ("Jon Berg", "jon@northwind.example", "Desk arrived scratched", "Order A-1007: one desk has a long scratch."),
        (
            "Lakeside School",
            "office@lakeside.example",
            "Invoice address",
            "Please move our invoices to the new street.",
        ),
    ):
        desk.open_ticket({"subject": subject, "body": body}, requester={"name": name, "email": email})
    return desk


def _refuse_unknown(wanted: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if any(name not in known for name in wanted):
        raise HelpdeskError(400, f"only {', '.join(known)} are allowed")


def _refuse_full(records: Mapping[Any, Any]) -> None:
    if len(records) >= MAX_RECORDS:
        raise HelpdeskError(507, f"the store is limited to {MAX_RECORDS} records")


def _text(wanted: Mapping[str, Any], name: str, *, longest: int) -> str:
    return _valid(
        wanted.get(name),
        lambda value: isinstance(value, str) and bool(value.strip()) and len(value) <= longest,
        f"{name!r} is a text of 1 to {longest} characters",
    )


def _choice(wanted: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    return _valid(wanted.get(name), lambda value: value in choices, f"{name!r} is one of {', '.join(choices)}")


def _valid(value: Any, holds: Callable[[Any], bool], reason: str) -> str:
    if not holds(value):
        raise HelpdeskError(400, reason)
    return str(value)


CUSTOMER: Final = "acme"
STATES: Final = ("announced", "under way", "delivered")

_KNOWN_SHIPMENTS: Final[tuple[Record, ...]] = (
    {
        "reference": "FR-2041",
        "order": "A-1001",
        "state": "under way",
        "expected": "2026-11-18",
        "events": [
            {"at": "2026-11-14T08:10:00Z", "place": "Hamburg", "what": "taken over"},
            {"at": "2026-11-15T19:42:00Z", "place": "Kassel", "what": "sorted"},
        ],
    },
    {
        "reference": "FR-2007",
        "order": "A-0988",
        "state": "delivered",
        "expected": "2026-11-11",
        "events": [{"at": "2026-11-11T14:05:00Z", "place": "Ulm", "what": "handed over"}],
    },
    {"reference": "FR-2055", "order": "A-1007", "state": "announced", "expected": "2026-11-20", "events": []},
)


def get_shipment(reference: str) -> Record:
    found = next((each for each in _KNOWN_SHIPMENTS if each["reference"] == reference), None)
    if found is None:
        raise HelpdeskError(404, "the shipment does not exist")
    return found


def find_shipments(query: Mapping[str, str]) -> Record:
    """Return the shipments of a customer without their events, filtered by order and state if given."""
    if query.get("customer") != CUSTOMER:
        raise HelpdeskError(403, "the token belongs to another customer")
    if query.get("state", STATES[0]) not in STATES:
        raise HelpdeskError(400, f"'state' is one of {', '.join(STATES)}")
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:3]) <= MAX_FOUND):
        raise HelpdeskError(400, f"'limit' is a number from 1 to {MAX_FOUND}")
    wanted = {key: query[key] for key in ("order", "state") if key in query}
    found = [each for each in _KNOWN_SHIPMENTS if all(each[key] == value for key, value in wanted.items())]
    return {"shipments": [{**each, "events": []} for each in found[: int(limit)]], "total": len(found)}


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
    """A server with one daemon thread per connection."""

    daemon_threads = True

    def __init__(self, port: int, token: str, desk: HelpdeskStore) -> None:
        super().__init__((HOST, port), HelpdeskHandler)
        self.expected = f"Bearer {token}".encode()
        self.desk = desk

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects; print any other error without the content of the request."""
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
            self.close_connection = True  # the body is not read, so it must not be parsed as the next request
        self._serve({_TICKETS: self._search, _SHIPMENTS: self._find_shipments})

    def do_POST(self) -> None:
        self._serve({_TICKETS: self._open_ticket, _REFUNDS: self._refund})

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because request lines contain texts of customers."""

    def _serve(self, routes: Mapping[str, Callable[[], Answer]]) -> None:
        try:
            status, answer = self._answer(routes)
        except HelpdeskError as refused:
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
            raise HelpdeskError(401, "a valid bearer token is required")
        path = urlsplit(self.path).path
        if path in routes:
            return routes[path]()
        if self.command == "GET" and (found := _ONE_TICKET.fullmatch(path)):
            return HTTPStatus.OK, {"ticket": self.server.desk.ticket(found[1])}
        if self.command == "GET" and (found := _ONE_SHIPMENT.fullmatch(path)):
            return HTTPStatus.OK, get_shipment(found[1])
        if path in (_TICKETS, _REFUNDS, _SHIPMENTS) or _ONE_TICKET.fullmatch(path) or _ONE_SHIPMENT.fullmatch(path):
            raise HelpdeskError(405, f"{self.command} is not allowed here")
        raise HelpdeskError(404, "there is no resource at this path")

    def _parse_query(self) -> dict[str, str]:
        try:
            return dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True, max_num_fields=10))
        except ValueError:
            raise HelpdeskError(400, "the query string has too many parameters") from None

    def _find_shipments(self) -> Answer:
        return HTTPStatus.OK, find_shipments(self._parse_query())

    def _search(self) -> Answer:
        parameters = self._parse_query()
        query, limit = parameters.get("query", ""), parameters.get("limit", "10")
        if not query.strip():
            raise HelpdeskError(400, "'query' is the text to look for")
        if not re.fullmatch(r"[0-9]{1,2}", limit) or not 1 <= int(limit) <= MAX_FOUND:
            raise HelpdeskError(400, f"'limit' is a number from 1 to {MAX_FOUND}")
        return HTTPStatus.OK, {"tickets": self.server.desk.search(query, int(limit))}

    def _open_ticket(self) -> Answer:
        return HTTPStatus.CREATED, {"ticket": self.server.desk.open_ticket(self._body(), requester=_REQUESTER)}

    def _refund(self) -> Answer:
        return HTTPStatus.CREATED, {"refund": self.server.desk.refund(self._body())}

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"[0-9]{1,12}", length) or "Transfer-Encoding" in self.headers:
            raise HelpdeskError(411, "Content-Length is required")
        if int(length) > MAX_BODY:
            raise HelpdeskError(413, f"a body has at most {MAX_BODY} bytes")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise HelpdeskError(400, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise HelpdeskError(400, "the body is a JSON object")
        return body


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway.examples.helpdesk_service", description=__doc__)
    parser.add_argument("--port", type=int, default=8091, help="port on loopback; 0 selects a free port")
    parser.add_argument("command", nargs="*", help="command to run in parallel, after --")
    given = parser.parse_args(arguments)
    token = os.environ.get("HELPDESK_TOKEN", "")
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        print("HELPDESK_TOKEN is not set: set it to the token that callers must send", file=sys.stderr)
        return 2
    try:
        server = HelpdeskServer(given.port, token, sample_store())
    except (OSError, OverflowError) as error:
        another = "use another port: --port, or make serve HELPDESK_PORT=…"
        print(f"cannot listen on port {given.port}: {error}; {another}", file=sys.stderr)
        return 1
    with server:
        return _serve_with_command(server, given.command) if given.command else _serve_alone(server)


def _serve_alone(server: HelpdeskServer) -> int:
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        print(f"helpdesk at {server.url}", flush=True)
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    return 0


def _serve_with_command(server: HelpdeskServer, command: Sequence[str]) -> int:
    """Serve while a command runs, and return its exit code."""
    Thread(target=server.serve_forever, daemon=True).start()
    print(f"helpdesk at {server.url}", flush=True)
    try:
        running = subprocess.Popen(command, env={**os.environ, "HELPDESK_URL": server.url})  # noqa: S603 - the caller chose it
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda number, frame: running.terminate())
    signal.signal(signal.SIGINT, lambda number, frame: None)  # the terminal also signals the command
    code = running.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
