"""The error tree: its codes, its text form, and that an error survives copying and pickling."""

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway import errors
from gateway.errors import (
    AnswerTooLarge,
    GatewayError,
    InvalidToolArgs,
    PipelineShortCircuited,
    ToolDownstreamError,
    Unauthenticated,
    ValidationException,
    message_of,
    problem,
)

TABLE = [
    ("InvalidInitialToolValue", "E_INVALID_INITIAL_TOOL_VALUE", 500, True),
    ("InvalidToolArgs", "E_INVALID_TOOL_ARGS", 422, False),
    ("ToolDownstreamError", "E_TOOL_DOWNSTREAM_ERROR", 500, False),
    ("LoopStopped", "E_LOOP_STOPPED", 429, False),
    ("ToolAlreadyRegistered", "E_TOOL_ALREADY_REGISTERED", 409, True),
    ("InvalidInitialToolCallValue", "E_INVALID_INITIAL_TOOL_CALL_VALUE", 500, True),
    ("InvalidInitialRegistryValue", "E_INVALID_INITIAL_REGISTRY_VALUE", 500, True),
    ("InvalidInitialMediaValue", "E_INVALID_INITIAL_MEDIA_VALUE", 500, True),
    ("NotAMediaReader", "E_NOT_A_MEDIA_READER", 500, True),
    ("NotASpoolReader", "E_NOT_A_SPOOL_READER", 500, True),
    ("ArtifactIdCollision", "E_ARTIFACT_ID_COLLISION", 409, True),
    ("ReaderNotDescribable", "E_READER_NOT_DESCRIBABLE", 422, False),
    ("NoReaderResolver", "E_NO_READER_RESOLVER", 422, False),
    ("InvalidInitialTurnGateValue", "E_INVALID_INITIAL_TURN_GATE_VALUE", 500, True),
    ("InvalidTurnGateResolution", "E_INVALID_TURN_GATE_RESOLUTION", 500, True),
    ("TurnGateTimeout", "E_TURN_GATE_TIMEOUT", 408, False),
    ("TurnGateAborted", "E_TURN_GATE_ABORTED", 499, False),
    ("LlmExecutionGateNotSupported", "E_LLM_EXECUTION_GATE_NOT_SUPPORTED", 501, False),
    ("InvalidTurnRunnerConfig", "E_INVALID_TURN_RUNNER_CONFIG", 529, True),
    ("InvalidTurnContext", "E_INVALID_TURN_CONTEXT", 529, True),
    ("InputPipelineError", "E_INPUT_PIPELINE_ERROR", 500, False),
    ("OutputPipelineError", "E_OUTPUT_PIPELINE_ERROR", 500, False),
    ("PipelineShortCircuited", "E_PIPELINE_SHORT_CIRCUITED", 500, False),
    ("InvalidLlmDispatchInput", "E_INVALID_LLM_DISPATCH_INPUT", 529, True),
    ("InvalidLlmExecutionContext", "E_INVALID_LLM_EXECUTION_CONTEXT", 529, True),
    ("LlmExecutionAlreadySignalled", "E_LLM_EXECUTION_ALREADY_SIGNALLED", 500, True),
    ("DispatchPipelineError", "E_DISPATCH_PIPELINE_ERROR", 500, False),
    ("LlmExecutionExecutorError", "E_LLM_EXECUTION_EXECUTOR_ERROR", 500, False),
    ("TokenizableEvaluatorInvalid", "E_TOKENIZABLE_EVALUATOR_INVALID", 500, True),
    ("TokenEstimatorShadowsBuiltin", "E_TOKEN_ESTIMATOR_SHADOWS_BUILTIN", 409, True),
    ("CredentialUnknown", "E_CREDENTIAL_UNKNOWN", 503, False),
    ("NotPermitted", "E_NOT_PERMITTED", 403, False),
    ("RuleDenied", "E_RULE_DENIED", 403, False),
    ("RuleHeld", "E_RULE_HELD", 403, False),
    ("UnknownTool", "E_UNKNOWN_TOOL", 404, False),
    ("UnknownCatalogue", "E_UNKNOWN_CATALOGUE", 404, False),
    ("UnknownTurn", "E_UNKNOWN_TURN", 404, False),
    ("UnknownCall", "E_UNKNOWN_CALL", 404, False),
    ("IdempotencyConflict", "E_IDEMPOTENCY_CONFLICT", 409, False),
    ("UnsupportedMediaModality", "E_UNSUPPORTED_MEDIA_MODALITY", 415, False),
    ("YamlParseError", "E_YAML_PARSE_ERROR", 422, False),
    ("ToonDecodeFailed", "E_TOON_DECODE_FAILED", 422, False),
    ("XmlParseFailed", "E_XML_PARSE_FAILED", 422, False),
    ("YamlPeerMissing", "E_YAML_PEER_MISSING", 500, False),
    ("ToonPeerMissing", "E_TOON_PEER_MISSING", 500, False),
    ("TypescriptPeerMissing", "E_TYPESCRIPT_PEER_MISSING", 500, False),
    ("XmlParserPeerMissing", "E_XML_PARSER_PEER_MISSING", 500, True),
    ("InvalidIdentityProvider", "E_INVALID_IDENTITY_PROVIDER", 500, True),
    ("Unauthenticated", "E_UNAUTHENTICATED", 401, False),
    ("ValidationException", "VALIDATION_EXCEPTION", 422, False),
    ("AbortError", "E_ABORTED", 499, False),
    ("ArtifactGone", "E_ARTIFACT_GONE", 410, False),
    ("ArtifactDamaged", "E_ARTIFACT_DAMAGED", 502, False),
    ("PatternNotSupported", "E_PATTERN_NOT_SUPPORTED", 422, False),
    ("AnswerTooLarge", "E_ANSWER_TOO_LARGE", 422, False),
    ("TokenEstimateUnavailable", "E_TOKEN_ESTIMATE_UNAVAILABLE", 422, False),
    ("StoreUnavailable", "E_STORE_UNAVAILABLE", 503, False),
    ("ForeignStore", "E_STORE_NOT_OURS", 500, True),
    ("RecordConflict", "E_RECORD_CONFLICT", 409, False),
    ("ResultNotStored", "E_RESULT_NOT_KEPT", 424, False),
    ("OutputTooLarge", "E_OUTPUT_TOO_LARGE", 413, False),
    ("SpoolQuotaExceeded", "E_SPOOL_QUOTA_EXCEEDED", 507, False),
    ("JsonParseError", "E_JSON_PARSE_ERROR", 422, False),
    ("JsonPathInvalid", "E_JSON_PATH_INVALID", 422, False),
]

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, GatewayError) and value.__module__ == errors.__name__
}

Survival = Callable[[Any], Any]
SURVIVALS: list[Survival] = [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy]


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def make_error(error: type[GatewayError]) -> GatewayError:
    """Return an instance that differs from its class wherever the constructor allows it."""
    if error is PipelineShortCircuited:
        return PipelineShortCircuited("turn-input")
    if error is Unauthenticated:
        return Unauthenticated("invalid_token", reason="expired")
    if error is ValidationException:
        return ValidationException([problem("'n' is too small", ["n"], "minimum", limit=3)])
    return error("it broke", help="mend it", code="E_OTHER", status=418, fatal=not error.fatal)


@pytest.mark.parametrize(("name", "code", "status", "fatal"), TABLE, ids=[row[1] for row in TABLE])
def test_class_carries_code_status_and_fatality(name: str, code: str, status: int, fatal: bool) -> None:
    error = CLASSES[name]

    assert (error.code, error.status, error.fatal) == (code, status, fatal)


def test_every_leaf_of_the_tree_is_in_the_table() -> None:
    parents = {base for error in CLASSES.values() for base in error.__bases__}
    leaves = {name for name, error in CLASSES.items() if error not in parents}

    assert leaves == {row[0] for row in TABLE}


def test_codes_are_unique() -> None:
    codes = [error.code for error in CLASSES.values()]

    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("name", CLASSES)
def test_default_message_is_one_plain_line(name: str) -> None:
    message = CLASSES[name].default_message

    assert message
    assert "\n" not in message
    assert not message.endswith(".")


def test_docstring_draws_the_real_tree() -> None:
    drawn = dict(_drawn_tree(errors.__doc__ or ""))

    real = {name: error.__bases__[0].__name__ for name, error in CLASSES.items() if error is not GatewayError}
    assert drawn == real


def test_text_form_names_class_code_and_message() -> None:
    assert str(AnswerTooLarge("too many lines")) == "AnswerTooLarge [E_ANSWER_TOO_LARGE]: too many lines"


def test_text_form_shows_an_overridden_code() -> None:
    assert str(GatewayError("it broke", code="E_OTHER")) == "GatewayError [E_OTHER]: it broke"


def test_message_defaults_to_that_of_the_class() -> None:
    assert GatewayError().message == "the gateway failed"
    assert GatewayError("").message == ""


def test_override_belongs_to_one_instance() -> None:
    changed = GatewayError(code="E_OTHER", status=418, fatal=True, help="mend it")

    assert (changed.code, changed.status, changed.fatal, changed.help) == ("E_OTHER", 418, True, "mend it")
    assert (GatewayError.code, GatewayError.status, GatewayError.fatal) == ("E_GATEWAY", 500, False)
    assert GatewayError().help is None


def test_override_with_a_falsy_value_counts() -> None:
    assert CLASSES["InvalidTurnContext"]("again", fatal=False, status=0).fatal is False
    assert GatewayError(status=0).status == 0


def test_cause_given_to_the_constructor_is_chained() -> None:
    original = ValueError("boom")

    error = ToolDownstreamError(cause=original)

    assert error.cause is original
    assert error.__suppress_context__


def test_cause_is_what_the_error_was_raised_from() -> None:
    original = ValueError("boom")

    with pytest.raises(ToolDownstreamError) as caught:
        raise ToolDownstreamError from original

    assert caught.value.cause is original
    assert GatewayError().cause is None


def test_short_circuit_names_its_pipeline() -> None:
    error = PipelineShortCircuited("dispatch-output")

    assert error.label == "dispatch-output"
    assert "dispatch-output" in error.message
    assert error.help


def test_validation_exception_joins_the_messages() -> None:
    error = ValidationException(iter([problem("a is missing", ["a"]), problem("b is wrong", ["b", 0], "type")]))

    assert error.message == "a is missing and b is wrong"
    assert error.details == [
        {"message": "a is missing", "path": ["a"], "type": "invalid", "context": {}},
        {"message": "b is wrong", "path": ["b", 0], "type": "type", "context": {}},
    ]


def test_validation_exception_without_details_has_a_message() -> None:
    assert ValidationException([]).message == "the value is invalid"


def test_validation_exception_copies_its_details() -> None:
    detail = problem("a is missing")

    error = ValidationException([detail])
    detail["message"] = "changed"

    assert error.details[0]["message"] == "a is missing"


@pytest.mark.parametrize("survive", SURVIVALS, ids=["pickle", "copy", "deepcopy"])
@pytest.mark.parametrize("name", CLASSES)
def test_error_survives_a_round_trip(name: str, survive: Survival) -> None:
    error = make_error(CLASSES[name])

    again = survive(error)

    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert again.args == error.args
    assert str(again) == str(error)
    assert (again.code, again.status, again.fatal) == (error.code, error.status, error.fatal)


@pytest.mark.parametrize("survive", SURVIVALS, ids=["pickle", "copy", "deepcopy"])
def test_field_details_survive_with_the_error_they_caused(survive: Survival) -> None:
    error = InvalidToolArgs(cause=ValidationException([problem("'n' is too small", ["n"])]))

    again = survive(error)

    assert again.cause.details == [problem("'n' is too small", ["n"])]


def test_foreign_cause_stays_behind_when_pickled() -> None:
    class Unpicklable(Exception):
        """A class inside a function cannot be found again by name."""

    again = pickle.loads(pickle.dumps(ToolDownstreamError("it broke", cause=Unpicklable("boom"))))

    assert again.message == "it broke"
    assert again.cause is None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (AnswerTooLarge("too many lines"), "too many lines"),
        (ValueError("boom"), "boom"),
        (ValueError(), "ValueError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Speechless("boom"), "Speechless"),
    ],
    ids=["ours", "theirs", "theirs without a text", "not an Exception", "unable to describe itself"],
)
def test_message_of_gives_the_text_a_reader_needs(error: BaseException, text: str) -> None:
    assert message_of(error) == text


def _drawn_tree(drawing: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of class and parent: a name's parent is the last one further to the left."""
    drawn: list[tuple[int, str]] = []
    for row in drawing.splitlines():
        if branch := re.match(r"    [│├└─ ]*(\w+(?:, \w+)*),?(?:  |$)", row):
            parents = [name for column, name in drawn if column < branch.start(1)]
            names = branch[1].split(", ")
            yield from ((name, parents[-1]) for name in names if parents)
            drawn += [(branch.start(1), name) for name in names]
