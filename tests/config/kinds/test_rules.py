"""Rules over several fields of one document: which break, where, and with which message."""

from typing import Any

import pytest

from gateway.config.kinds.validation import ShapeProblem, validate_document
from tests.config.kinds.example_documents import changed, example, without

TICKET = "Tool-ticket_create"
LOG = "Tool-repo_log"
REFUND = "GateRule-refunds-over-500"
RATE = "GateRule-fair-use"
QUOTA = "GateRule-search-budget"
HOURS = "GateRule-deploy-hours"
CATALOGUE = "Catalogue-engineering"
TESTS = "PolicyTest-engineering"
MEDIA = {
    "kind": "image",
    "mimeType": "image/png",
    "filename": "a.png",
    "trustTier": "first-party",
    "hazard": "inert",
}

BROKEN: list[tuple[str, dict[str, Any], str, str, str]] = [
    (
        "deprecated without a last day",
        changed(TICKET, "spec.lifecycle", "deprecated"),
        "missing-field",
        "spec",
        "a deprecated tool needs 'deprecation'",
    ),
    (
        "removed before it was deprecated",
        changed("Tool-code_find", "spec.deprecation.removeAfter", "2026-08-31"),
        "bad-date",
        "spec.deprecation.removeAfter",
        "removeAfter is before since",
    ),
    (
        "artifact and media",
        changed(TICKET, "spec.output", {"artifact": "ticket", "media": MEDIA}),
        "wrong-value",
        "spec.output.media",
        "a result is an artifact or media, not both",
    ),
    (
        "media with a schema",
        changed(TICKET, "spec.output", {"media": MEDIA, "schema": {}}),
        "wrong-value",
        "spec.output.schema",
        "media has no schema",
    ),
    (
        "input that is no object",
        changed(TICKET, "spec.input.schema.type", "array"),
        "wrong-value",
        "spec.input.schema.type",
        "arguments must be an object",
    ),
    (
        "properties that are no mapping",
        changed(TICKET, "spec.input.schema.properties", ["subject"]),
        "wrong-type",
        "spec.input.schema.properties",
        "expected a mapping",
    ),
    (
        "own backend without input",
        without(TICKET, "spec.input"),
        "missing-field",
        "spec",
        "a tool without an upstream needs 'input'",
    ),
    (
        "unknown argument in the URL",
        changed(TICKET, "spec.backend.url", "https://helpdesk.example.com/{subjekt}"),
        "wrong-value",
        "spec.backend.url",
        "'subjekt' is not a property of the input schema",
    ),
    (
        "argument in the URL that may be missing",
        changed("Tool-ticket_read", "spec.backend.url", "https://helpdesk.example.com/{number}/{full}"),
        "wrong-value",
        "spec.backend.url",
        "the backend uses argument 'full', which callers may omit",
    ),
    (
        "stray brace in the URL",
        changed(TICKET, "spec.backend.url", "https://helpdesk.example.com/{subject"),
        "bad-url",
        "spec.backend.url",
        "the URL has a brace that is not part of a {placeholder}",
    ),
    (
        "unknown argument in the body",
        changed(TICKET, "spec.backend.body.only", ["subject", "bodi"]),
        "wrong-value",
        "spec.backend.body.only[1]",
        "'bodi' is not a property of the input schema",
    ),
    (
        "body of a GET",
        changed("Tool-ticket_read", "spec.backend.body", {"from": "arguments"}),
        "wrong-value",
        "spec.backend.body",
        "a GET request has no body",
    ),
    (
        "credential as a header",
        changed(TICKET, "spec.backend.headers", {"X-Api-Key": "abc"}),
        "secret-as-text",
        "spec.backend.headers.X-Api-Key",
        "a credential must not be a plain header",
    ),
    (
        "credential as a header of an upstream",
        changed("Upstream-github", "spec.transport.headers", {"Authorization": "Bearer abc"}),
        "secret-as-text",
        "spec.transport.headers.Authorization",
        "a credential must not be a plain header",
    ),
    (
        "program that is not absolute",
        changed(LOG, "spec.backend.argv.0", "git"),
        "wrong-value",
        "spec.backend.argv[0]",
        "the program must be a fixed absolute path",
    ),
    (
        "program that is an argument",
        changed(LOG, "spec.backend.argv.0", "/bin/{workspace}"),
        "wrong-value",
        "spec.backend.argv[0]",
        "the program must be a fixed absolute path",
    ),
    (
        "program of an upstream that climbs",
        changed("Upstream-files", "spec.transport.argv.0", "/usr/bin/../../tmp/x"),
        "wrong-value",
        "spec.transport.argv[0]",
        "the program must be a fixed absolute path",
    ),
    (
        "placeholder inside an argument",
        changed(LOG, "spec.backend.argv.2", "--root={workspace}"),
        "wrong-value",
        "spec.backend.argv[2]",
        "a placeholder must be a whole argument",
    ),
    (
        "unknown placeholder",
        changed(LOG, "spec.backend.argv.6", "{limits}"),
        "wrong-value",
        "spec.backend.argv[6]",
        "'limits' is not a property of the input schema",
    ),
    (
        "exit status with two meanings",
        changed(LOG, "spec.backend.exit", {"ok": [0, 1], "failed": [1]}),
        "wrong-value",
        "spec.backend.exit.failed[0]",
        "exit status 1 cannot be both ok and failed",
    ),
    (
        "auth for a program",
        changed("Upstream-files", "spec.auth", {"scheme": "bearer", "token": {"fromEnv": "T"}}),
        "wrong-value",
        "spec.auth",
        "a program takes no 'auth'",
    ),
    (
        "key in the query of an mcp server",
        changed("Upstream-github", "spec.auth", {"scheme": "query", "name": "k", "value": {"fromEnv": "T"}}),
        "wrong-value",
        "spec.auth.scheme",
        "an MCP server requires credentials in a header",
    ),
    (
        "operations of an mcp server",
        changed("Upstream-github", "spec.import.select", {"tags": ["a"]}),
        "wrong-value",
        "spec.import.select",
        "'select' applies only to OpenAPI documents",
    ),
    (
        "selection of nothing",
        changed("Upstream-billing", "spec.import.select", {}),
        "wrong-value",
        "spec.import.select",
        "the selection is empty",
    ),
    (
        "document over http",
        changed("Upstream-billing", "spec.transport.document", "http://example.com/openapi.json"),
        "bad-url",
        "spec.transport.document",
        "the document must be fetched over https",
    ),
    (
        "document from nowhere",
        changed("Upstream-billing", "spec.transport.document", "javascript:alert(1)"),
        "bad-url",
        "spec.transport.document",
        "the document must be fetched over https",
    ),
    (
        "query in the address of a service",
        changed("Upstream-billing", "spec.transport.server", "https://example.com/?a=b"),
        "bad-url",
        "spec.transport.server",
        "the URL of a service has no query",
    ),
    (
        "credential in a header of an operation",
        changed("Tool-invoice_list", "spec.backend.headers", {"authorization": "Bearer x"}),
        "secret-as-text",
        "spec.backend.headers.authorization",
        "a credential must not be a plain header",
    ),
    (
        "default of a fixed argument",
        changed("Tool-invoice_list", "spec.backend.arguments", {"fixed": {"a": 1}, "defaults": {"a": 2}}),
        "wrong-value",
        "spec.backend.arguments.defaults.a",
        "'a' is fixed, so the default has no effect",
    ),
    (
        "name of a hidden argument",
        changed("Tool-invoice_list", "spec.backend.arguments", {"hidden": ["a"], "renamed": {"a": "b"}}),
        "wrong-value",
        "spec.backend.arguments.renamed.a",
        "'a' is hidden, so callers never see this",
    ),
    (
        "fixed and hidden",
        changed("Tool-invoice_list", "spec.backend.arguments", {"fixed": {"a": 1}, "hidden": ["a"]}),
        "wrong-value",
        "spec.backend.arguments.hidden[0]",
        "'a' is fixed, so it is hidden already",
    ),
    (
        "neither base nor class",
        without("ArtifactClass-ticket", "spec.base"),
        "missing-field",
        "spec",
        "an artifact class needs 'base' or 'class'",
    ),
    (
        "both base and class",
        changed("ArtifactClass-ticket", "spec.class", "acme:Ticket"),
        "wrong-value",
        "spec.class",
        "an artifact class takes only one of 'base' or 'class'",
    ),
    (
        "inline above the largest size",
        changed("ArtifactClass-ticket", "spec.inlineBelow", "2MiB"),
        "wrong-value",
        "spec.inlineBelow",
        "inlineBelow is larger than maxSize",
    ),
    (
        "access key without its secret",
        changed("Storage-main", "spec.blobs", {"type": "s3", "bucket": "b", "accessKey": {"fromEnv": "A"}}),
        "wrong-value",
        "spec.blobs.accessKey",
        "'accessKey' requires 'secretKey'",
    ),
    (
        "secret key without its access key",
        changed("Storage-main", "spec.blobs", {"type": "s3", "bucket": "b", "secretKey": {"fromEnv": "A"}}),
        "wrong-value",
        "spec.blobs.secretKey",
        "'secretKey' requires 'accessKey'",
    ),
    (
        "prefix that ends in a slash",
        changed("Storage-main", "spec.blobs", {"type": "s3", "bucket": "b", "prefix": "../a/"}),
        "bad-path",
        "spec.blobs.prefix",
        "write names separated by '/', without '/' at the start or end: gateway/results",
    ),
    (
        "collision order with a gap",
        changed("CollisionPolicy-careful", "spec.order", ["tools", "tools"]),
        "wrong-value",
        "spec.order",
        "order must list tools and upstreams once each",
    ),
    (
        "more approvals than approvers",
        changed(REFUND, "spec.check.from", ["user:ana"]),
        "wrong-value",
        "spec.check.count",
        "2 approvals are required, but only 1 can approve",
    ),
    (
        "answer that is no object",
        changed(REFUND, "spec.check.resolution", {"type": "string"}),
        "wrong-value",
        "spec.check.resolution",
        "an answer must be an object",
    ),
    (
        "rate over a day",
        changed(RATE, "spec.check.per", "1d"),
        "wrong-value",
        "spec.check.per",
        "the period of a rate is at most an hour",
    ),
    (
        "confirmation open for a day",
        changed(RATE, "spec.check", {"type": "confirmation", "reason": "r", "timeout": "1d"}),
        "wrong-value",
        "spec.check.timeout",
        "a confirmation times out after an hour at most",
    ),
    (
        "quota over a minute",
        changed(QUOTA, "spec.check.per", "1m"),
        "wrong-value",
        "spec.check.per",
        "the period of a quota is at least an hour",
    ),
    (
        "quota over ten years",
        changed(QUOTA, "spec.check.per", "3660d"),
        "wrong-value",
        "spec.check.per",
        "the period of a quota is at most a year",
    ),
    (
        "window that closes before it opens",
        changed(HOURS, "spec.check.open.1.to", "08:00"),
        "wrong-value",
        "spec.check.open[1].to",
        "'to' is not later than 'from'",
    ),
    (
        "day named twice",
        changed(HOURS, "spec.check.open.0.days", ["mon", "mon"]),
        "wrong-value",
        "spec.check.open[0].days",
        "a day is named twice",
    ),
    (
        "budget of nothing",
        changed("GateRule-turn-budget", "spec.check", {"type": "budget"}),
        "missing-field",
        "spec.check",
        "a budget needs 'calls' or 'bytes'",
    ),
    (
        "rule that matches nothing",
        changed(RATE, "spec.match", {"tools": []}),
        "wrong-value",
        "spec.match",
        "the selector is empty",
    ),
    (
        "waiver of nothing",
        changed(CATALOGUE, "spec.waivers.0.forbidTogether", ["private-data", "egress"]),
        "wrong-value",
        "spec.waivers[0].forbidTogether",
        "the waiver matches no combination of spec.forbidTogether",
    ),
    (
        "document patched twice",
        changed("Overlay-prod", "spec.patches.1.target", {"kind": "Telemetry", "name": "default"}),
        "wrong-value",
        "spec.patches[1].target",
        "Telemetry/default is patched twice",
    ),
    (
        "case that calls and discovers",
        changed(TESTS, "spec.cases.0.discover", True),
        "wrong-value",
        "spec.cases[0].discover",
        "a case takes only one of 'call' or 'discover'",
    ),
    (
        "case that asks nothing",
        without(TESTS, "spec.cases.1.discover"),
        "missing-field",
        "spec.cases[1]",
        "a case needs 'call' or 'discover'",
    ),
    (
        "arguments without a call",
        changed(TESTS, "spec.cases.1.with", {}),
        "wrong-value",
        "spec.cases[1].with",
        "only a call has arguments",
    ),
    (
        "call that expects tools",
        changed(TESTS, "spec.cases.0.expect", {"tools": []}),
        "missing-field",
        "spec.cases[0].expect",
        "a call expects a 'decision'",
    ),
    (
        "discovery that expects a decision",
        changed(TESTS, "spec.cases.1.expect", {"decision": "allow"}),
        "missing-field",
        "spec.cases[1].expect",
        "a discover case expects 'tools'",
    ),
    (
        "reason for a list of tools",
        changed(TESTS, "spec.cases.1.expect", {"tools": [], "because": {"gate": "x"}}),
        "wrong-value",
        "spec.cases[1].expect.because",
        "only a decision has a reason",
    ),
    (
        "two cases of one name",
        changed(TESTS, "spec.cases.1.name", "an engineer may open a ticket"),
        "wrong-value",
        "spec.cases[1].name",
        "another case has this name",
    ),
    (
        "case without a catalogue",
        without("PolicyTest-taint", "spec.cases.0.in"),
        "missing-field",
        "spec.cases[0]",
        "a case needs 'in', or a catalogue in 'given'",
    ),
    (
        "case without a moment",
        without("PolicyTest-taint", "spec.cases.0.at"),
        "missing-field",
        "spec.cases[0].name",
        "a case needs 'at', or a time in 'given'",
    ),
    (
        "two reasons",
        changed(TESTS, "spec.cases.0.expect.because.gate", "x"),
        "wrong-value",
        "spec.cases[0].expect.because.gate",
        "a reason takes only one of 'policy' or 'gate' or 'tier' or 'class'",
    ),
    (
        "key set from nowhere",
        changed("IdentityProvider-corp", "spec.keys", {}),
        "missing-field",
        "spec.keys",
        "a key set needs 'fromFile' or 'fromUrl'",
    ),
]


def written(problem: ShapeProblem) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem.path)[1:]


@pytest.mark.parametrize(
    ("document", "code", "path", "message"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_broken_rule_is_one_problem_at_its_place(document: dict[str, Any], code: str, path: str, message: str) -> None:
    model, problems = validate_document(document)

    assert model is None
    assert [(problem.code, written(problem), problem.message) for problem in problems] == [(code, path, message)]


@pytest.mark.parametrize("path", ["/mcp", "/mcp/x", "/v1", "/admin", "/livez", "/readyz", "/.well-known/x"])
def test_paths_of_the_gateway_itself_are_reserved(path: str) -> None:
    _, problems = validate_document(changed(CATALOGUE, "spec.publish.path", path))

    assert [problem.path for problem in problems] == [("spec", "publish", "path")]
    assert "is reserved for the gateway" in problems[0].message


def test_path_that_only_begins_like_a_reserved_one_is_free() -> None:
    assert validate_document(changed(CATALOGUE, "spec.publish.path", "/mcp-tools"))[1] == []


def test_several_broken_rules_of_one_block_are_reported_together() -> None:
    document = changed(HOURS, "spec.check.open.0", {"days": ["mon", "mon"], "from": "09:00", "to": "08:00"})

    _, problems = validate_document(document)

    assert [problem.path[-1] for problem in problems] == ["to", "days"]


def test_burst_may_be_larger_than_a_small_limit() -> None:
    document = changed(RATE, "spec.check", {"type": "rate", "limit": 1, "per": "1s", "burst": 10})

    assert validate_document(document)[1] == []


def test_window_may_last_the_whole_day() -> None:
    document = changed(HOURS, "spec.check.open.0", {"days": ["sun"], "from": "00:00", "to": "24:00"})

    assert validate_document(document)[1] == []


def test_roles_may_stand_for_any_number_of_approvers() -> None:
    document = changed(REFUND, "spec.check.from", ["user:ana", "role:finance-lead"])

    assert validate_document(document)[1] == []


def test_waiver_may_list_its_flags_in_another_order() -> None:
    document = changed(CATALOGUE, "spec.waivers.0.forbidTogether", ["egress", "private-data", "untrusted-output"])

    assert validate_document(document)[1] == []


def test_braces_that_name_nothing_are_plain_arguments() -> None:
    document = changed(LOG, "spec.backend.argv", ["/usr/bin/find", "{workspace}", "-exec", "ls", "{}", ";"])

    assert validate_document(document)[1] == []


@pytest.mark.parametrize("required", [5, True, None, "workspace", {"workspace": True}], ids=repr)
def test_hostile_required_list_means_that_nothing_is_required(required: Any) -> None:
    _, problems = validate_document(changed(LOG, "spec.input.schema.required", required))

    assert [problem.message for problem in problems] == [
        "the backend uses argument 'workspace', which callers may omit"
    ]


@pytest.mark.parametrize("name", ["Tool-code_search", "Tool-price_quote"])
def test_backend_without_placeholders_takes_any_input(name: str) -> None:
    assert validate_document(changed(name, "spec.input", {"schema": {"type": "object"}}))[1] == []


@pytest.mark.parametrize("check", ["approval", "window"])
def test_approval_needs_its_timeout_and_a_window_its_hours(check: str) -> None:
    document = without(*{"approval": (REFUND, "spec.check.timeout"), "window": (HOURS, "spec.check.open")}[check])

    _, problems = validate_document(document)

    assert [(problem.code, problem.path) for problem in problems] == [("missing-field", ("spec", "check"))]


@pytest.mark.parametrize("field", ["kind", "mimeType", "filename", "trustTier", "hazard"])
def test_media_needs_all_five(field: str) -> None:
    _, problems = validate_document(without("Tool-price_chart", f"spec.output.media.{field}"))

    assert [problem.message for problem in problems] == [f"spec.output.media needs {field!r}"]


def test_rank_is_never_negative() -> None:
    _, problems = validate_document(changed("TrustTier-internal", "spec.rank", -1))

    assert [(problem.path, problem.message) for problem in problems] == [(("spec", "rank"), "must be at least 0")]


@pytest.mark.parametrize("kind", ["Overlay", "PolicyTest", "Nothing"])
def test_overlay_touches_declarations_only(kind: str) -> None:
    _, problems = validate_document(changed("Overlay-prod", "spec.patches.0.target.kind", kind))

    assert [problem.path for problem in problems] == [("spec", "patches", 0, "target", "kind")]


def test_empty_patch_is_refused() -> None:
    _, problems = validate_document(changed("Overlay-prod", "spec.patches.0.merge", {}))

    assert [problem.path for problem in problems] == [("spec", "patches", 0, "merge")]


def test_defaults_are_the_careful_ones() -> None:
    document = example("GateRule-no-egress-after-untrusted-text")
    del document["spec"]["mode"]

    rule, _ = validate_document(document)

    spec = rule.spec  # type: ignore[union-attr]  # a GateRule, as in the example
    assert (spec.mode, spec.check.count, spec.check.exclude_requester) == ("enforce", 1, True)
    assert spec.hold_for.total_seconds() == 45
