"""All names of telemetry: spans, attributes, events and metrics.

Names come from the OpenTelemetry semantic conventions where they exist. Those may still change, so every signal has the
version of the conventions, and a test fixes each name. The gateway's own names start with `gateway.`
"""

from dataclasses import dataclass
from typing import Final, Literal

SCOPE: Final = "gateway"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.1"
"""The last release of the conventions that has `gen_ai.*` and `mcp.*`."""

# --- attributes of the conventions; docs/telemetry.md has the meaning of each ---

CLIENT_ADDRESS: Final = "client.address"
CLIENT_PORT: Final = "client.port"
CPU_MODE: Final = "cpu.mode"
ERROR_TYPE: Final = "error.type"
EXCEPTION_PLACES: Final = "exception.stacktrace"
EXCEPTION_TYPE: Final = "exception.type"
HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"
MCP_METHOD: Final = "mcp.method.name"
MCP_SESSION: Final = "mcp.session.id"
MCP_VERSION: Final = "mcp.protocol.version"
NETWORK_PROTOCOL: Final = "network.protocol.name"
NETWORK_PROTOCOL_VERSION: Final = "network.protocol.version"
NETWORK_TRANSPORT: Final = "network.transport"
OPERATION: Final = "gen_ai.operation.name"
REQUEST_ID: Final = "jsonrpc.request.id"
RESPONSE_CODE: Final = "rpc.response.status_code"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
TOOL_TYPE: Final = "gen_ai.tool.type"
URL_SCHEME: Final = "url.scheme"

# --- our own ---

APPROVAL_ID: Final = "gateway.approval.id"
APPROVAL_STATE: Final = "gateway.approval.state"
ARGUMENT_BYTES: Final = "gateway.arguments.bytes"
ARGUMENT_DIGEST: Final = "gateway.arguments.digest"
ARGUMENT_KEYS: Final = "gateway.arguments.keys"
ARTIFACT_CLASS: Final = "gateway.artifact.class"
ARTIFACT_ID: Final = "gateway.artifact.id"
CALL_ID: Final = "gateway.call.id"
CHECKSUM: Final = "gateway.call.checksum"
CATALOGUE: Final = "gateway.catalogue.name"
CONFIG_REVISION: Final = "gateway.config.revision"
DECISION: Final = "gateway.decision"
DECISION_CACHED: Final = "gateway.decision.cached"
DECISION_REASON: Final = "gateway.decision.reason"
DEFINITION: Final = "gateway.tool.definition_hash"
DISPATCH_ID: Final = "gateway.dispatch.id"
DISPATCH_ITERATIONS: Final = "gateway.dispatch.iterations"
DISPATCH_STATUS: Final = "gateway.dispatch.status"
GATE_ID: Final = "gateway.gate.id"
GATE_NAME: Final = "gateway.gate.name"
GATE_OUTCOME: Final = "gateway.gate.outcome"
IS_CANCELLED: Final = "gateway.call.cancelled"
IS_REPLAYED: Final = "gateway.call.replayed"
LIMIT_KIND: Final = "gateway.limit.kind"
LOGGER: Final = "gateway.log.logger"
LOG_ARGUMENTS: Final = "gateway.log.arguments"
LOG_TEMPLATE: Final = "gateway.log.template"
OUTCOME: Final = "gateway.outcome"
POLICY_REVISION: Final = "gateway.policy.revision"
POLICY_ROW: Final = "gateway.policy.row"
POLICY_RULE: Final = "gateway.policy.rule"
PRINCIPAL: Final = "gateway.principal.hash"
PRINCIPAL_NAME: Final = "gateway.principal.name"
READ: Final = "gateway.read"
RESULT_BYTES: Final = "gateway.result.bytes"
RESULT_DIGEST: Final = "gateway.result.digest"
RESULT_SPOOLED: Final = "gateway.result.spooled"
STEP_SECONDS: Final = "gateway.step.duration"
TENANT: Final = "gateway.tenant.hash"
TIER: Final = "gateway.trust.tier"
TOOL: Final = "gateway.tool.name"
TOOL_FLAGS: Final = "gateway.tool.flags"
TOOL_KIND: Final = "gateway.tool.kind"
TURN_ENDING: Final = "gateway.turn.ending"
TURN_ID: Final = "gateway.turn.id"
UPSTREAM: Final = "gateway.upstream.name"

# --- spans ---

EXECUTE_TOOL: Final = "execute_tool"
TOOLS_CALL: Final = "tools/call"
DISPATCH: Final = "dispatch"
ITERATION: Final = "iteration"
TURN: Final = "turn"
DECIDE: Final = "approval decide"
GATE: Final = "gate"
REFRESH: Final = "upstream refresh"
TOOL_ERROR: Final = "tool_error"
OTHER: Final = "_other"
"""Replaces names that callers invent: labels must be bounded."""

AUTHORISE: Final = "authorise"
RULES: Final = "rules"
QUEUE: Final = "queue"
RETRY: Final = "retry"
BACKEND_PYTHON: Final = "backend python"
BACKEND_COMMAND: Final = "backend command"
RECORD: Final = "record"

STEPS: Final = (AUTHORISE, RULES, QUEUE, RETRY, BACKEND_PYTHON, BACKEND_COMMAND, RECORD)
"""Stages and waits of a call: events of its span with normal detail, spans with full detail."""

SPANS: Final = (
    *("tools/call {tool}", "{mcp.method.name}", "{http.request.method} {http.route}", "execute_tool {tool}"),
    *("{http.request.method}", "{mcp.method.name} {tool}", "gate {rule}", "approval decide {gate}"),
    *(TURN, DISPATCH, ITERATION, GATE, REFRESH, *STEPS),
)

EXCEPTION: Final = "exception"
"""Event on the span of a call whose tool failed."""

# --- events: log records with a name ---

CALL_STARTED: Final = "gateway.call.started"
"""A call begins. It is sent at once, so that it is visible even if the process is killed."""
CALL_UNKNOWN: Final = "gateway.call.outcome_unknown"
"""A call was started and its end was not recorded."""

EVENTS: Final = (EXCEPTION, *STEPS, CALL_STARTED, CALL_UNKNOWN)

# --- metrics ---

Instrument = Literal["counter", "updowncounter", "gauge", "histogram"]

OPERATION_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
EXECUTE_BUCKETS: Final = tuple(0.01 * 2**power for power in range(14))
HTTP_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
LAG_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
WAIT_BUCKETS: Final = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. It has no other `attributes`; none has a value per caller, call or argument."""

    name: str
    instrument: Instrument
    unit: str
    meaning: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_NETWORK: Final = (NETWORK_TRANSPORT, NETWORK_PROTOCOL, NETWORK_PROTOCOL_VERSION)
_OF_MCP: Final = (MCP_METHOD, TOOL_NAME, OPERATION, ERROR_TYPE, RESPONSE_CODE, MCP_VERSION, *_NETWORK)
_OF_PEER: Final = (SERVER_ADDRESS, SERVER_PORT)

SERVER_DURATION: Final = Metric(
    "mcp.server.operation.duration", "histogram", "s", "MCP requests to the gateway", _OF_MCP, OPERATION_BUCKETS
)
CLIENT_DURATION: Final = Metric(
    "mcp.client.operation.duration",
    "histogram",
    "s",
    "MCP requests to upstream servers",
    (*_OF_MCP, *_OF_PEER),
    OPERATION_BUCKETS,
)
SERVER_SESSION: Final = Metric(
    "mcp.server.session.duration",
    "histogram",
    "s",
    "sessions of clients that have them",
    (ERROR_TYPE, MCP_VERSION, *_NETWORK),
    OPERATION_BUCKETS,
)
EXECUTE_DURATION: Final = Metric(
    "gen_ai.execute_tool.duration",
    "histogram",
    "s",
    "allowed calls, from their decision to their record",
    (OPERATION, TOOL_NAME, TOOL_TYPE, ERROR_TYPE, CATALOGUE, TIER),
    EXECUTE_BUCKETS,
)
HTTP_DURATION: Final = Metric(
    "http.server.request.duration",
    "histogram",
    "s",
    "REST requests",
    (HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS, ERROR_TYPE, URL_SCHEME),
    HTTP_BUCKETS,
)
DECISIONS: Final = Metric(
    "gateway.decisions",
    "counter",
    "{decision}",
    "decisions about calls",
    (DECISION, DECISION_REASON, CATALOGUE, TIER, POLICY_RULE),
)
APPROVALS_PENDING: Final = Metric(
    "gateway.approvals.pending", "updowncounter", "{approval}", "approvals that wait for a decision", (GATE_NAME,)
)
APPROVAL_WAIT: Final = Metric(
    "gateway.approval.wait", "histogram", "s", "time until approvals end", (GATE_NAME, GATE_OUTCOME), WAIT_BUCKETS
)
APPROVAL_DECISIONS: Final = Metric(
    "gateway.approval.decisions", "counter", "{decision}", "outcomes of approvals", (GATE_NAME, GATE_OUTCOME)
)
SPOOL_BYTES: Final = Metric("gateway.spool.bytes", "counter", "By", "bytes of stored results", (CATALOGUE,))
SPOOL_UNAVAILABLE: Final = Metric(
    "gateway.spool.unavailable", "gauge", "{state}", "1 while large results can be neither stored nor read, 0 otherwise"
)
RECORDS_DURATION: Final = Metric(
    "gateway.records.write.duration", "histogram", "s", "writing a record until it is durable", (), HTTP_BUCKETS
)
RECORDS_UNAVAILABLE: Final = Metric(
    "gateway.records.unavailable", "counter", "{record}", "records that could not be written"
)
CIRCUITS: Final = Metric(
    "gateway.upstream.circuit.state", "gauge", "{state}", "0 closed, 1 half open, 2 open", (TOOL_NAME, UPSTREAM)
)
RELOADS: Final = Metric("gateway.config.reloads", "counter", "{reload}", "reloads of the configuration", (OUTCOME,))
CONFIG_EXPIRES: Final = Metric(
    "gateway.config.expires", "gauge", "s", "when the served bundle expires, in seconds since 1970"
)
DEFINITION_CHANGES: Final = Metric(
    "gateway.definition.changes", "counter", "{change}", "tools that upstream servers changed", (UPSTREAM,)
)
LIMITS: Final = Metric(
    "gateway.limits", "counter", "{call}", "calls that a limit stopped", (LIMIT_KIND, CATALOGUE, POLICY_RULE)
)
REFUSED: Final = Metric(
    "gateway.requests.refused", "counter", "{request}", "requests answered with 4xx or 5xx", (HTTP_STATUS,)
)
RUNNING: Final = Metric("gateway.calls.running", "updowncounter", "{call}", "calls that run now")
CHECKS_FAILED: Final = Metric(
    "gateway.checks.failed", "counter", "{call}", "calls denied because a check could not be made", (DECISION_REASON,)
)
UNKNOWN_OUTCOMES: Final = Metric(
    "gateway.calls.unknown", "counter", "{call}", "calls whose outcome is unknown, because their process ended"
)
UPSTREAM_STATE: Final = Metric(
    "gateway.upstream.state", "gauge", "{state}", "0 up, 1 not asked yet, 2 down, 3 left out", (UPSTREAM,)
)
ADMISSION_QUEUE: Final = Metric(
    "gateway.admission.queue.length", "updowncounter", "{request}", "requests that wait to be admitted"
)
ADMISSION_WAIT: Final = Metric(
    "gateway.admission.wait", "histogram", "s", "time that waiting requests waited to be admitted", (), HTTP_BUCKETS
)
LOOP_LAG: Final = Metric(
    "gateway.event_loop.lag", "histogram", "s", "how late the event loop is, fifty times a second", (), LAG_BUCKETS
)
PROCESS_CPU: Final = Metric("process.cpu.time", "counter", "s", "processor time of the process", (CPU_MODE,))
PROCESS_MEMORY: Final = Metric("process.memory.usage", "updowncounter", "By", "physical memory in use")
PROCESS_FILES: Final = Metric(
    "process.unix.file_descriptor.count", "updowncounter", "{file_descriptor}", "open file descriptors"
)
PROCESS_UPTIME: Final = Metric("process.uptime", "gauge", "s", "time since the start of the process")
SPANS_PROCESSED: Final = Metric(
    "otel.sdk.processor.span.processed",
    "counter",
    "{span}",
    "spans that ended; those with `error.type` were dropped",
    (ERROR_TYPE,),
)
LOGS_PROCESSED: Final = Metric(
    "otel.sdk.processor.log.processed",
    "counter",
    "{log_record}",
    "log records; those with `error.type` were dropped",
    (ERROR_TYPE,),
)

METRICS: Final = tuple(each for each in tuple(globals().values()) if isinstance(each, Metric))

SHARED: Final = frozenset({APPROVALS_PENDING.name})
"""Metrics of the shared store, the same in every process of a gateway."""

# --- values ---

CALLER_FAULTS: Final = frozenset({-32700, -32600, -32601, -32602, -32002, -32020, -32021, -32022})
"""JSON-RPC error codes for errors of the caller: a server that returns them has not failed.

The last four are MCP's own: unknown resource, header mismatch, missing capability, unsupported version.
"""

ERROR_CODES: Final = range(-32700, -31999)
"""The reserved codes of JSON-RPC; a server may invent others."""

MCP_METHODS: Final = frozenset(
    {
        *("initialize", "ping", "server/discover", "subscriptions/listen", "logging/setLevel", "completion/complete"),
        *("tools/list", "tools/call", "prompts/list", "prompts/get", "tasks/get", "tasks/result", "tasks/cancel"),
        *("resources/list", "resources/templates/list", "resources/read", "tasks/list", "tasks/update"),
        *("resources/subscribe", "resources/unsubscribe"),
    }
)
"""Methods that may be part of a name; callers may invent others."""

_ELSEWHERE: Final = frozenset({"http", "mcp", "command"})

QUEUE_FULL: Final = "queue_full"
"""Reason of dropped spans and log records: the queue was full."""

DROP_REASONS: Final = (QUEUE_FULL, "closed", "failed", "rejected", "timeout", "unreachable")
"""Usual reasons of dropped spans and log records; others are statuses of collectors."""

FAILED_CHECKS: Final = frozenset({"check-failed", "audit-unavailable"})
"""Reasons of denials that no document intends."""


def tool_type(backend: str | None) -> str:
    """Return the type of a tool by its backend; query tools have none."""
    return "datastore" if backend is None else "extension" if backend in _ELSEWHERE else "function"


def code_word(code: int) -> str:
    """Return the label of a JSON-RPC error code from an upstream server."""
    return str(code) if code in ERROR_CODES else OTHER


def call_span(tool: str | None) -> str:
    """Return the span name of a received call; without a tool name if the caller does not know the tool."""
    return TOOLS_CALL if tool is None else f"{TOOLS_CALL} {tool}"


def execute_span(tool: str) -> str:
    return f"{EXECUTE_TOOL} {tool}"


def decide_span(gate: str) -> str:
    return f"{DECIDE} {gate}"


def gate_span(rules: str) -> str:
    return f"{GATE} {rules}"
