"""The helpdesk over real sockets: served from a thread here, and started and ended as its users do it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse
from threading import Thread
from typing import Any

import pytest

from gateway.examples.helpdesk_service import (
    MAX_BODY,
    MAX_RECORDS,
    HelpdeskError,
    HelpdeskServer,
    HelpdeskStore,
    sample_store,
)

TOKEN = "a-token-for-tests"
COMMAND = [sys.executable, "-m", "gateway.examples.helpdesk_service", "--port"]


def start_helpdesk() -> tuple[subprocess.Popen[str], int]:
    environ = {**os.environ, "HELPDESK_TOKEN": TOKEN}
    process = subprocess.Popen([*COMMAND, "0"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, int(line.rsplit(":", 1)[1])


def stop_helpdesk(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    return process.returncode, errors


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with HelpdeskServer(0, TOKEN, sample_store()) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def ask(
    port: int, method: str, path: str, *, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[HTTPResponse, Any]:
    connection = HTTPConnection("127.0.0.1", port)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {"Authorization": f"Bearer {TOKEN}"} if headers is None else headers)
        answer = connection.getresponse()
        return answer, json.loads(answer.read())
    finally:
        connection.close()


def test_ticket_that_was_opened_can_be_read_and_found(port: int) -> None:
    answer, opened = ask(port, "POST", "/api/v2/tickets", body={"subject": "Printer", "body": "It is on FIRE: ✓"})
    assert answer.status == 201
    ticket = opened["ticket"]
    assert (ticket["subject"], ticket["priority"], ticket["state"]) == ("Printer", "normal", "open")

    answer, read = ask(port, "GET", f"/api/v2/tickets/{ticket['number']}")
    assert (answer.status, read) == (200, opened)

    answer, found = ask(port, "GET", "/api/v2/tickets?query=on%20fire")
    assert (answer.status, found) == (200, {"tickets": [ticket]})


def test_customers_have_left_tickets_and_limit_is_kept(port: int) -> None:
    _, all_of_them = ask(port, "GET", "/api/v2/tickets?query=e&limit=50")
    _, one = ask(port, "GET", "/api/v2/tickets?query=e&limit=1")

    assert {1001, 1002, 1003} <= {ticket["number"] for ticket in all_of_them["tickets"]}
    assert one["tickets"] == all_of_them["tickets"][:1]


def test_order_is_refunded_once(port: int) -> None:
    wanted = {"order": "A-1", "amount": 12.5, "currency": "EUR"}

    first, paid = ask(port, "POST", "/api/v2/refunds", body=wanted)
    second, refused = ask(port, "POST", "/api/v2/refunds", body=wanted)

    assert (first.status, paid["refund"]["amount"]) == (201, 12.5)
    assert (second.status, refused) == (409, {"error": "order A-1 is already refunded"})


def test_many_refunds_of_one_order_at_once_pay_once(port: int) -> None:
    wanted = {"order": "A-2", "amount": 1, "currency": "EUR"}

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(port, "POST", "/api/v2/refunds", body=wanted)[0].status, range(16)))

    assert sorted(answers) == [201, *[409] * 15]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="none"),
        pytest.param({"Authorization": "Bearer wrong"}, id="wrong token"),
        pytest.param({"Authorization": TOKEN}, id="no scheme"),
        pytest.param({"Authorization": f"Basic {TOKEN}"}, id="wrong scheme"),
        pytest.param({"Authorization": "Bearer "}, id="empty"),
    ],
)
@pytest.mark.parametrize("path", ["/api/v2/tickets/1001", "/nowhere"])
def test_caller_without_the_token_learns_nothing(port: int, path: str, headers: dict[str, str]) -> None:
    answer, refused = ask(port, "GET", path, headers=headers)

    assert (answer.status, refused) == (401, {"error": "a valid bearer token is required"})
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="helpdesk"'


@pytest.mark.parametrize(
    "path",
    ["/", "/api/v2/tickets/9999", "/api/v2/tickets/x", "/api/v2/tickets/1001/", "/api/v2/tickets/²", "/api/v1/tickets"],
)
def test_what_is_not_there_is_not_found(port: int, path: str) -> None:
    answer, _ = ask(port, "GET", path.replace("²", "%C2%B2"))

    assert answer.status == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/api/v2/refunds", "POST"), ("POST", "/api/v2/tickets/1001", "GET")],
)
def test_wrong_method_gets_the_allowed_one(port: int, method: str, path: str, allowed: str) -> None:
    answer, _ = ask(port, method, path, body={})

    assert (answer.status, answer.headers["Allow"]) == (405, allowed)


TICKET = {"subject": "s", "body": "b"}
REFUND = {"order": "A-3", "amount": 1, "currency": "EUR"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("tickets", b"", id="nothing"),
        pytest.param("tickets", b"{", id="half an object"),
        pytest.param("tickets", b"\xff\xfe", id="no text"),
        pytest.param("tickets", b"[" * 60_000, id="deeply nested"),
        pytest.param("tickets", [TICKET], id="a list"),
        pytest.param("tickets", {"subject": "s"}, id="missing"),
        pytest.param("tickets", {**TICKET, "subject": "  "}, id="blank"),
        pytest.param("tickets", {**TICKET, "subject": 7}, id="wrong type"),
        pytest.param("tickets", {**TICKET, "subject": "x" * 201}, id="too long"),
        pytest.param("tickets", {**TICKET, "priority": ["high"]}, id="priority of a wrong type"),
        pytest.param("tickets", {**TICKET, "number": 1}, id="unknown field"),
        pytest.param("refunds", {**REFUND, "amount": 0}, id="nothing to pay"),
        pytest.param("refunds", {**REFUND, "amount": -5}, id="negative"),
        pytest.param("refunds", {**REFUND, "amount": True}, id="a boolean"),
        pytest.param("refunds", {**REFUND, "amount": "5"}, id="an amount in quotes"),
        pytest.param("refunds", b'{"order": "A-3", "amount": NaN, "currency": "EUR"}', id="not a number"),
        pytest.param("refunds", b'{"order": "A-3", "amount": 1e999, "currency": "EUR"}', id="infinite"),
        pytest.param("refunds", {**REFUND, "currency": "XXX"}, id="unknown currency"),
    ],
)
def test_bad_body_is_refused_with_a_reason(port: int, path: str, body: Any) -> None:
    answer, refused = ask(port, "POST", f"/api/v2/{path}", body=body)

    assert answer.status == 400
    assert refused["error"]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?query=",
        "?query=x&limit=0",
        "?query=x&limit=51",
        "?query=x&limit=-1",
        "?query=x&limit=abc",
        "?a" + "&a" * 20,
    ],
)
def test_bad_search_is_refused(port: int, query: str) -> None:
    assert ask(port, "GET", f"/api/v2/tickets{query}")[0].status == 400


def test_body_over_the_limit_is_refused_before_it_is_read(port: int) -> None:
    headers = f"Authorization: Bearer {TOKEN}\r\nHost: x\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n"

    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f"POST /api/v2/tickets HTTP/1.1\r\n{headers}".encode())
        answer = HTTPResponse(client)
        answer.begin()

        assert (answer.status, answer.headers["Connection"]) == (413, "close")


def test_body_of_unknown_length_is_refused(port: int) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Transfer-Encoding": "chunked"}

    assert ask(port, "POST", "/api/v2/tickets", headers=headers)[0].status == 411


def test_body_of_a_question_does_not_pass_for_the_next_one(port: int) -> None:
    hidden = b"GET /api/v2/tickets/1002 HTTP/1.1\r\n\r\n"
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Length": str(len(hidden))}

    answer, ticket = ask(port, "GET", "/api/v2/tickets/1001", body=hidden, headers=headers)

    assert (answer.status, ticket["ticket"]["number"]) == (200, 1001)
    assert answer.headers["Connection"] == "close"


def test_connection_serves_one_question_after_the_other(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port)
    headers = {"Authorization": f"Bearer {TOKEN}"}

    for method, path in (("POST", "/api/v2/tickets"), ("GET", "/api/v2/tickets/1001"), ("GET", "/api/v2/tickets/1002")):
        connection.request(method, path, json.dumps(TICKET) if method == "POST" else None, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status in (200, 201)
        assert answer.headers["Connection"] is None
    connection.close()


def test_lone_surrogate_comes_back_as_it_went_in(port: int) -> None:
    answer, opened = ask(port, "POST", "/api/v2/tickets", body=b'{"subject": "\\ud800", "body": "b"}')

    assert (answer.status, opened["ticket"]["subject"]) == (201, "\ud800")


def test_program_serves_until_it_is_stopped() -> None:
    process, port = start_helpdesk()

    answer, found = ask(port, "GET", "/api/v2/tickets/1002")

    assert (answer.status, found["ticket"]["subject"]) == (200, "Desk arrived scratched")
    assert stop_helpdesk(process) == (0, "")


def test_full_desk_takes_no_more() -> None:
    desk = HelpdeskStore()
    for _ in range(MAX_RECORDS):
        desk.open_ticket(TICKET, requester={})

    with pytest.raises(HelpdeskError) as caught:
        desk.open_ticket(TICKET, requester={})

    assert caught.value.status == 507


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak"])
def test_service_without_a_token_does_not_start(token: str) -> None:
    run = subprocess.run(
        [*COMMAND, "0"], env={**os.environ, "HELPDESK_TOKEN": token}, capture_output=True, text=True, check=False
    )

    assert (run.returncode, run.stdout) == (2, "")
    assert "HELPDESK_TOKEN" in run.stderr
    assert run.stderr.count("\n") == 1


def test_taken_port_is_reported_in_one_line(port: int) -> None:
    environ = {**os.environ, "HELPDESK_TOKEN": TOKEN}

    run = subprocess.run([*COMMAND, str(port)], env=environ, capture_output=True, text=True, check=False)

    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith(f"cannot listen on port {port}: ")
    assert "HELPDESK_PORT" in run.stderr
    assert run.stderr.count("\n") == 1


def beside(port: int, *command: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "HELPDESK_TOKEN": TOKEN}
    return subprocess.run(
        [*COMMAND, str(port), "--", *command], env=environ, capture_output=True, text=True, timeout=60
    )


def test_command_beside_it_gets_the_address_and_gives_the_exit_code() -> None:
    asking = (
        "import os, urllib.request as r;"
        "asked = r.Request(os.environ['HELPDESK_URL'] + '/api/v2/tickets/1001',"
        " headers={'Authorization': 'Bearer ' + os.environ['HELPDESK_TOKEN']});"
        "print(r.urlopen(asked).status); raise SystemExit(3)"
    )

    run = beside(0, sys.executable, "-c", asking, "--port", "1")

    assert (run.returncode, run.stdout.splitlines()[1:], run.stderr) == (3, ["200"], "")


def test_nothing_is_run_beside_a_service_that_cannot_listen(port: int) -> None:
    run = beside(port, sys.executable, "-c", "print('ran')")

    assert (run.returncode, run.stdout) == (1, "")


def test_missing_command_is_reported_in_one_line() -> None:
    run = beside(0, "/nowhere/gateway")

    assert (run.returncode, run.stderr) == (1, "cannot run /nowhere/gateway: No such file or directory\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 7), (signal.SIGINT, 0)])
def test_command_beside_it_is_signalled_unless_a_terminal_does_that(number: int, code: int) -> None:
    waiting = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7));"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [*COMMAND, "0", "--", sys.executable, "-c", waiting],
        env={**os.environ, "HELPDESK_TOKEN": TOKEN},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline().split()[0] for _ in range(2)] == ["helpdesk", "up"]

    process.send_signal(number)
    if number == signal.SIGTERM:
        process.wait(timeout=60)
    process.communicate(timeout=60)

    assert process.returncode == code


def test_command_that_was_killed_has_the_exit_code_of_a_shell() -> None:
    run = beside(0, sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")

    assert run.returncode == 137
