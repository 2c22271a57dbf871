"""What users run: each row is a call with its gateway, next to FastMCP doing the same job where it can."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, partial
from tempfile import TemporaryDirectory

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from jwt import PyJWT
from jwt.algorithms import ECAlgorithm

from benchmarks import servers
from benchmarks.gateways import COMMAND, document, gateway, shipped_gateway, shipped_pipeline, tool_spec
from benchmarks.load import (
    MANY,
    Connection,
    Conversation,
    Load,
    Repeated,
    Turns,
    in_session,
    mcp_call,
    rest_call,
    with_handle,
)
from benchmarks.servers import Served, start_server


class NotAvailable(Exception):
    """A program that a row needs is not on this machine."""


Place = Callable[..., AbstractContextManager[Served]]
"""Starts what a row calls. That of a gateway takes the command that starts it."""


@dataclass(frozen=True)
class Row:
    name: str
    place: str
    conversation: Conversation
    fastmcp: str = ""
    """The row of FastMCP doing the same job."""
    is_timed: bool = True
    """Whether the table of times has it; others are for counts of instructions alone."""


def choose_rows(rows: Sequence[Row], patterns: Sequence[str]) -> list[Row]:
    """Return the rows that match one of the patterns, or all if there is none."""
    chosen = [row for row in rows if not patterns or any(fnmatch(row.name, f"*{each}*") for each in patterns)]
    if not chosen:
        raise SystemExit("no row has such a name; there are:\n" + "\n".join(f"  {row.name}" for row in rows))
    return chosen


# --- where calls go ---


@contextmanager
def serve_tools(command: Sequence[str] = COMMAND) -> Iterator[Served]:
    """A gateway with tools of every kind and with gate rules, each about one tool."""
    with ExitStack() as running:
        ports = [running.enter_context(start_server(name))[1] for name in ("quotes", "upstream")]
        more = "\n---\n".join(document(*each) for each in tool_documents(*ports))
        yield running.enter_context(gateway(more=more, command=command))


def tool_documents(quotes: int, upstream: int) -> Iterator[tuple[str, str, str]]:
    json_output = "  output: {artifact: json, inline: true, schema: {type: object, required: [total, currency]}}"
    echo = '{type: python, entrypoint: "bench_tools:echo", run: loop}'
    yield "Tool", "quote", tool_spec('{type: python, entrypoint: "bench_tools:quote", run: loop}', json_output)
    url = f"http://127.0.0.1:{quotes}/quotes/{{sku}}"
    yield "Tool", "fetch", tool_spec(f'{{type: http, method: GET, url: "{url}"}}', json_output, argument="sku")
    yield from upstream_documents(f'{{type: streamable-http, url: "http://127.0.0.1:{upstream}/mcp"}}')
    for name, checks in RULES.items():
        yield "Tool", name, tool_spec(echo)
        for number, check in enumerate(checks):
            yield "GateRule", f"{name}-{number}", f"{{description: One., match: {{tools: [{name}]}}, {check}}}"


def upstream_documents(transport: str) -> Iterator[tuple[str, str, str]]:
    imported = "import: {include: [echo], trust: {tier: t, flags: []}, onChange: accept}"
    yield "Upstream", "behind", f"{{transport: {transport}, {imported}}}"
    yield "Tool", "hop", tool_spec("{type: mcp, upstream: behind, tool: echo}")


@contextmanager
def serve_with_stdio(command: Sequence[str] = COMMAND) -> Iterator[Served]:
    """A gateway with an MCP server that it starts."""
    words = json.dumps([sys.executable, servers.__file__, "stdio"])
    transport = f'{{type: stdio, argv: {words}, sandbox: {{readable: ["/"]}}}}'
    documents = "\n---\n".join(document(*each) for each in upstream_documents(transport))
    with gateway(more=documents, command=command) as served:
        yield served


CEL = (
    'when: caller.subject.startsWith("agent:") && size(args.text) > 1, check: {type: budget, calls: 1}',
    'check: {type: arguments, require: "size(args.text) < 1000", message: too long}',
)
RATE = f"check: {{type: rate, limit: {MANY}, per: 1m, by: [subject, tool]}}"
RULES = {
    "rated": (RATE,),
    "counted": (f"check: {{type: quota, limit: {MANY}, per: 1d, by: [subject]}}",),
    "conditional": CEL,
    "exhausted": ("check: {type: rate, limit: 1, per: 1h, by: [subject]}",),
}


@contextmanager
def serve_guarded(command: Sequence[str] = COMMAND) -> Iterator[Served]:
    """A gateway with signed tokens, one revoked, the shipped pipeline, and a rate and two conditions for `echo`."""
    rules = {"echo": (RATE, *CEL), "exhausted": RULES["exhausted"]}
    documents = [
        document("GateRule", f"{name}-{number}", f"{{description: One., match: {{tools: [{name}]}}, {check}}}")
        for name, checks in rules.items()
        for number, check in enumerate(checks)
    ]
    documents.append(
        document("Tool", "exhausted", tool_spec('{type: python, entrypoint: "bench_tools:echo", run: loop}'))
    )
    key = {"kid": "k", "use": "sig", "alg": "ES256", **ECAlgorithm.to_jwk(signing_key().public_key(), as_dict=True)}
    identity = (
        f"{{type: jwt, issuer: {ISSUER}, audience: [bench], algorithms: [ES256], keys: {{fromFile: keys.json}}, "
        "roles: {claim: groups, map: {bench: role:bench}}}"
    )
    with TemporaryDirectory() as folder:
        database = f"{folder}/gateway.db"
        with gateway(
            more="\n---\n".join(documents),
            storage=f"{{type: sqlite, path: {database}}}",
            pipeline=shipped_pipeline(),
            identity=identity,
            files={"keys.json": json.dumps({"keys": [key]})},
            command=command,
        ) as served:
            revoke = ["token", "revoke", "revoked", "--reason", "benchmark", "--database", database]
            subprocess.run([*COMMAND, *revoke], check=True, stdout=subprocess.DEVNULL)
            Connection(served[1]).send(mcp_call("exhausted", headers=bearer("allowed")))
            yield served


ISSUER = "https://login.example.com"


@cache
def signing_key() -> EllipticCurvePrivateKey:
    return generate_private_key(SECP256R1())


def bearer(id: str) -> dict[str, str]:
    claims = {
        "iss": ISSUER,
        "aud": "bench",
        "sub": "ana",
        "jti": id,
        "groups": ["bench"],
        "exp": int(time.time()) + 86400,
    }
    token = PyJWT().encode(claims, signing_key(), algorithm="ES256", headers={"kid": "k"})
    return {"authorization": f"Bearer {token}"}


@contextmanager
def serve_observed(command: Sequence[str] = COMMAND) -> Iterator[Served]:
    """A gateway that sends every span and start record."""
    with start_server("collector") as (_, collector), gateway(10, 1.0, collector, command=command) as served:
        yield served


@contextmanager
def serve_on_postgres(command: Sequence[str] = COMMAND) -> Iterator[Served]:
    try:
        from gateway.storage.sql.postgres.database_setup import migrate_postgres
        from tests.support.servers.postgres_server import start_postgres
    except ImportError as error:
        raise NotAvailable(f"PostgreSQL: {error}") from error
    with TemporaryDirectory() as folder, ExitStack() as running:
        try:
            cluster = running.enter_context(start_postgres(fsync="on", full_page_writes="on", shared_buffers="128MB"))
        except pytest.skip.Exception as error:
            raise NotAvailable(f"PostgreSQL: {error}") from error
        address = os.environ["BENCH_POSTGRES"] = cluster.database()
        migrate_postgres(address)
        blobs = f"{{type: files, path: {folder}/spool}}"
        storage = f"{{type: postgres, connection: {{fromEnv: BENCH_POSTGRES}}, blobs: {blobs}}}"
        yield running.enter_context(gateway(storage=storage, command=command))


@contextmanager
def serve_before(name: str, behind: str) -> Iterator[Served]:
    """A reference with a service behind it."""
    with start_server(behind) as (_, port), start_server(name, port) as served:
        yield served


PLACES: dict[str, Place] = {
    "echo": partial(start_server, "echo"),
    "fastmcp": partial(serve_before, "fastmcp", "quotes"),
    "fastmcp-sessions": partial(start_server, "fastmcp-sessions"),
    "proxy": partial(serve_before, "proxy", "upstream"),
    "plain": gateway,
    "10,000 tools": partial(gateway, 10_000),
    "shipped": shipped_gateway,
    "tools": serve_tools,
    "stdio": serve_with_stdio,
    "guarded": serve_guarded,
    "observed": serve_observed,
    "postgres": serve_on_postgres,
}


# --- what is called ---

ORDER = {"sku": "DESK-160", "quantity": 4}
TOTAL = b"1316.00"
ECHO = Row("bare ASGI echo", "echo", Repeated(mcp_call("echo", path="/")))
FASTMCP = "FastMCP, echo"
FASTMCP_QUOTE = "FastMCP, price_quote (JSON)"
FASTMCP_SESSION = "FastMCP, price_quote in a session"
FASTMCP_FETCH = "FastMCP, HTTP tool"
PROXY = "FastMCP proxy, upstream over HTTP"
ALLOWED = "JWT, shipped pipeline, rate, two CEL rules"
REFUSED = "refused: "


def _quote_call(**more: object) -> Load:
    return mcp_call("price_quote", ORDER, expects=TOTAL, **more)  # type: ignore[arg-type]  # as given


def _guarded(tool: str, refusal: bytes = b"", token: str = "allowed") -> Repeated:
    return Repeated(mcp_call(tool, headers=bearer(token), refusal=refusal))


def _shipped_session(at: int) -> Turns:
    return Turns(in_session("price_quote", ORDER, path="/support/mcp", expects=TOTAL), at)


REFERENCES = (
    ECHO,
    Row(FASTMCP, "fastmcp", Repeated(mcp_call("echo", path="/mcp"))),
    Row(FASTMCP_QUOTE, "fastmcp", Repeated(_quote_call(path="/mcp"))),
    Row(FASTMCP_SESSION, "fastmcp-sessions", Turns(in_session("price_quote", ORDER, path="/mcp", expects=TOTAL))),
    Row(FASTMCP_FETCH, "fastmcp", Repeated(mcp_call("fetch", {"sku": "DESK-160"}, path="/mcp", expects=TOTAL))),
    Row(PROXY, "proxy", Repeated(mcp_call("echo", path="/mcp"))),
)
PLAIN = Repeated(mcp_call("echo"))
ROWS = (
    Row("plain tool, stateless MCP", "plain", PLAIN, FASTMCP),
    Row("plain tool, REST", "plain", Repeated(rest_call("echo")), FASTMCP),
    Row("plain tool, one of 10,000", "10,000 tools", PLAIN, FASTMCP),
    Row("shipped, stateless MCP", "shipped", Repeated(_quote_call(path="/support/mcp")), FASTMCP_QUOTE),
    Row("shipped, session, 10th call", "shipped", _shipped_session(10), FASTMCP_SESSION),
    Row("shipped, session, 1,000th call", "shipped", _shipped_session(1_000), FASTMCP_SESSION),
    Row("shipped, session, 5,000th call", "shipped", _shipped_session(5_000), FASTMCP_SESSION),
    Row(
        "shipped, turn handle, REST",
        "shipped",
        Turns(with_handle("price_quote", ORDER, catalogue="support", expects=TOTAL)),
        FASTMCP_SESSION,
    ),
    Row(
        "shipped, REST",
        "shipped",
        Repeated(rest_call("price_quote", ORDER, catalogue="support", expects=TOTAL)),
        FASTMCP_QUOTE,
    ),
    Row("JSON with output schema", "tools", Repeated(mcp_call("quote", expects=TOTAL)), FASTMCP_QUOTE),
    Row("HTTP tool", "tools", Repeated(mcp_call("fetch", {"sku": "DESK-160"}, expects=TOTAL)), FASTMCP_FETCH),
    Row("MCP upstream over HTTP", "tools", Repeated(mcp_call("hop")), PROXY),
    Row("MCP upstream over stdio", "stdio", Repeated(mcp_call("hop"))),
    Row("rate rule", "tools", Repeated(mcp_call("rated")), FASTMCP, is_timed=False),
    Row("quota rule", "tools", Repeated(mcp_call("counted")), FASTMCP),
    Row("two CEL rules", "tools", Repeated(mcp_call("conditional")), FASTMCP, is_timed=False),
    Row("all spans sent", "observed", PLAIN, FASTMCP),
    Row("PostgreSQL", "postgres", PLAIN, FASTMCP),
    Row(ALLOWED, "guarded", _guarded("echo"), FASTMCP),
    Row(f"{REFUSED}rate limit", "guarded", _guarded("exhausted", b'"retry')),
    Row(f"{REFUSED}unknown tool", "guarded", _guarded("missing", b'"error"')),
    Row(f"{REFUSED}revoked token", "guarded", _guarded("echo", b" 401 ", "revoked")),
)
