"""Every error the gateway raises, grouped by what a caller would catch.

    GatewayError                     code · status · fatal · help · cause
    ├─ ProgramError                  fatal: wrong program or configuration, raised on the spot
    │  ├─ InvalidInitialToolValue, InvalidInitialToolCallValue, InvalidInitialRegistryValue,
    │  │  InvalidInitialMediaValue, InvalidInitialTurnGateValue
    │  ├─ NotAMediaReader, NotASpoolReader
    │  ├─ ToolAlreadyRegistered, ArtifactIdCollision, TokenEstimatorShadowsBuiltin
    │  ├─ InvalidTurnRunnerConfig, InvalidTurnContext
    │  ├─ InvalidLlmDispatchInput, InvalidLlmExecutionContext, LlmExecutionAlreadySignalled
    │  ├─ InvalidTurnGateResolution, TokenizableEvaluatorInvalid
    │  ├─ InvalidIdentityProvider
    │  └─ XmlParserPeerMissing
    ├─ ToolError                     a call failed; a model receives it as a result, not as a protocol error
    │  ├─ InvalidToolArgs            the cause is a ValidationException with field details
    │  ├─ ToolDownstreamError        the handler raised; the original is the cause
    │  └─ LoopStopped                the same call was made too often in its turn
    ├─ Refused                       the caller is refused
    │  ├─ Unauthenticated            the caller did not prove its identity; `reason` is for operators only
    │  ├─ CredentialUnknown          the credential may be valid, but its revocation cannot be checked right now
    │  ├─ NotPermitted               the policy denies the call; the deciding row is recorded
    │  └─ RuleDenied, RuleHeld       a gate rule denies the call, or holds it for a decision that cannot be made
    ├─ Missing                       unknown, or invisible to the caller: both give the same response
    │  └─ UnknownTool, UnknownCatalogue, UnknownTurn, UnknownCall
    ├─ IdempotencyConflict           the key was used for another call, or for one that is still running
    ├─ GateError                     the gate was not resolved
    │  └─ TurnGateTimeout, TurnGateAborted, LlmExecutionGateNotSupported
    ├─ PipelineError                 a middleware or the executor failed
    │  └─ InputPipelineError, OutputPipelineError, DispatchPipelineError,
    │     PipelineShortCircuited, LlmExecutionExecutorError
    ├─ ArtifactError                 a query could not be answered from an artifact
    │  ├─ ReaderNotDescribable, NoReaderResolver, ArtifactGone, ArtifactDamaged
    │  ├─ PatternNotSupported, AnswerTooLarge, TokenEstimateUnavailable
    │  └─ JsonParseError, JsonPathInvalid, YamlParseError, XmlParseFailed, ToonDecodeFailed
    ├─ StorageError                  a record could not be stored, or not be found again
    │  ├─ StoreUnavailable           nothing was written; a retry may work once the cause is gone
    │  ├─ ForeignStore               fatal: the database is newer than this program, or belongs to another one
    │  ├─ RecordConflict             the record contradicts a stored record
    │  ├─ ResultNotStored              the tool ran, but the bytes of its result could not be stored
    │  └─ OutputTooLarge, SpoolQuotaExceeded
    ├─ PeerMissing                   an optional parser is not installed
    │  └─ YamlPeerMissing, ToonPeerMissing, TypescriptPeerMissing
    ├─ UnsupportedMediaModality
    ├─ AbortError                    the turn was aborted on purpose; never reported as an error
    └─ ValidationException           cause carrier: one entry in `details` per problem

Messages are one line and safe to show to a model or a user. This module does not depend on
HTTP or JSON-RPC; transports use `status`, an HTTP status, to build their responses.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal


class GatewayError(Exception):
    """Base of the tree. `code`, `status` and `fatal` can be overridden per instance."""

    code: str = "E_GATEWAY"
    status: int = 500
    fatal: bool = False
    default_message: ClassVar[str] = "the gateway failed"

    def __init__(
        self,
        message: str | None = None,
        *,
        cause: BaseException | None = None,
        help: str | None = None,
        code: str | None = None,
        status: int | None = None,
        fatal: bool | None = None,
    ) -> None:
        self.message = self.default_message if message is None else message
        super().__init__(self.message)
        self.help = help
        if cause is not None:
            self.__cause__ = cause
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status
        if fatal is not None:
            self.fatal = fatal

    @property
    def cause(self) -> BaseException | None:
        return self.__cause__

    def __str__(self) -> str:
        return f"{type(self).__name__} [{self.code}]: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy errors of any subclass, whatever arguments its constructor takes.

        A cause that is a `GatewayError` is included. Any other cause is left out: it may not be picklable.
        """
        cause = self.__cause__ if isinstance(self.__cause__, GatewayError) else None
        return _revived, (type(self), self.args), {"__cause__": cause, **self.__dict__}


class ProgramError(GatewayError):
    code = "E_PROGRAM"
    fatal = True
    default_message = "the program or its configuration is wrong"


class InvalidInitialToolValue(ProgramError):
    code = "E_INVALID_INITIAL_TOOL_VALUE"
    default_message = "the tool definition is invalid"


class InvalidInitialToolCallValue(ProgramError):
    code = "E_INVALID_INITIAL_TOOL_CALL_VALUE"
    default_message = "the tool call record is invalid"


class InvalidInitialRegistryValue(ProgramError):
    code = "E_INVALID_INITIAL_REGISTRY_VALUE"
    default_message = "a registry is built from a dict with string keys"


class InvalidInitialMediaValue(ProgramError):
    code = "E_INVALID_INITIAL_MEDIA_VALUE"
    default_message = "the media value is invalid"


class InvalidInitialTurnGateValue(ProgramError):
    code = "E_INVALID_INITIAL_TURN_GATE_VALUE"
    default_message = "the gate input is invalid"


class NotAMediaReader(ProgramError):
    code = "E_NOT_A_MEDIA_READER"
    default_message = "a media reader must have stream() and byte_length()"


class NotASpoolReader(ProgramError):
    code = "E_NOT_A_SPOOL_READER"
    default_message = "a spool reader must have line(), byte_length(), line_count() and read_all()"


class ToolAlreadyRegistered(ProgramError):
    code = "E_TOOL_ALREADY_REGISTERED"
    status = 409
    default_message = "a tool of that name is already registered"


class ArtifactIdCollision(ProgramError):
    code = "E_ARTIFACT_ID_COLLISION"
    status = 409
    default_message = "a tool call and a retrieved record share one id"


class TokenEstimatorShadowsBuiltin(ProgramError):
    code = "E_TOKEN_ESTIMATOR_SHADOWS_BUILTIN"
    status = 409
    default_message = "a custom estimator may not use the name of a built-in encoding"


class InvalidTurnRunnerConfig(ProgramError):
    code = "E_INVALID_TURN_RUNNER_CONFIG"
    status = 529
    default_message = "the turn runner's configuration is invalid"


class InvalidTurnContext(ProgramError):
    code = "E_INVALID_TURN_CONTEXT"
    status = 529
    default_message = "the input of run() is invalid"


class InvalidLlmDispatchInput(ProgramError):
    code = "E_INVALID_LLM_DISPATCH_INPUT"
    status = 529
    default_message = "a dispatch takes exactly one of source and raw"


class InvalidLlmExecutionContext(ProgramError):
    code = "E_INVALID_LLM_EXECUTION_CONTEXT"
    status = 529
    default_message = "the dispatch context is invalid"


class LlmExecutionAlreadySignalled(ProgramError):
    code = "E_LLM_EXECUTION_ALREADY_SIGNALLED"
    default_message = "the dispatch was already acked or nacked"


class InvalidTurnGateResolution(ProgramError):
    code = "E_INVALID_TURN_GATE_RESOLUTION"
    default_message = "the value does not satisfy the gate's schema; the gate stays open"


class TokenizableEvaluatorInvalid(ProgramError):
    code = "E_TOKENIZABLE_EVALUATOR_INVALID"
    default_message = "the evaluator of a dynamic text must return a string"


class InvalidIdentityProvider(ProgramError):
    code = "E_INVALID_IDENTITY_PROVIDER"
    default_message = "the identity provider is invalid"


class XmlParserPeerMissing(ProgramError):
    code = "E_XML_PARSER_PEER_MISSING"
    default_message = "the XML parser is not installed"


class ToolError(GatewayError):
    code = "E_TOOL"
    default_message = "the tool call failed"


class InvalidToolArgs(ToolError):
    code = "E_INVALID_TOOL_ARGS"
    status = 422
    default_message = "the arguments do not satisfy the tool's input schema"


class ToolDownstreamError(ToolError):
    code = "E_TOOL_DOWNSTREAM_ERROR"
    default_message = "the tool failed while running"


class LoopStopped(ToolError):
    code = "E_LOOP_STOPPED"
    status = 429
    default_message = "the same call was made too often in this turn"


class Refused(GatewayError):
    code = "E_REFUSED"
    status = 403
    default_message = "refused"


class Unauthenticated(Refused):
    """The caller did not prove its identity.

    `error` is the OAuth error code of the challenge, or `None` if no credential was sent. `reason` names the check that
    failed. It is for operators only: it would help an attacker who guesses credentials.
    """

    code = "E_UNAUTHENTICATED"
    status = 401
    default_message = "a credential is needed"

    def __init__(self, error: Literal["invalid_request", "invalid_token"] | None, *, reason: str) -> None:
        super().__init__(
            None if error is None else _UNAUTHENTICATED[error],
            help="send one header of the form 'Authorization: Bearer <token>' with a token that is valid here",
        )
        self.error = error
        self.reason = reason


_UNAUTHENTICATED = {
    "invalid_request": "the Authorization header is not one bearer credential",
    "invalid_token": "the credential is not valid here",
}


class CredentialUnknown(Refused):
    """Not `Unauthenticated`, which would make a client discard a valid credential or prompt its user for a new one."""

    code = "E_CREDENTIAL_UNKNOWN"
    status = 503
    default_message = "cannot check right now whether the credential was revoked; try again"


class NotPermitted(Refused):
    code = "E_NOT_PERMITTED"
    default_message = "the policy does not permit this call"


class RuleDenied(Refused):
    code = "E_RULE_DENIED"
    default_message = "a gate rule denies this call"


class RuleHeld(Refused):
    code = "E_RULE_HELD"
    default_message = "a gate rule holds this call until an approver decides"


class Missing(GatewayError):
    code = "E_MISSING"
    status = 404
    default_message = "not found"


class UnknownTool(Missing):
    code = "E_UNKNOWN_TOOL"
    default_message = "there is no such tool"


class UnknownCatalogue(Missing):
    code = "E_UNKNOWN_CATALOGUE"
    default_message = "there is no such catalogue"


class UnknownTurn(Missing):
    code = "E_UNKNOWN_TURN"
    default_message = "there is no such turn"


class UnknownCall(Missing):
    code = "E_UNKNOWN_CALL"
    default_message = "there is no such call"


class IdempotencyConflict(GatewayError):
    code = "E_IDEMPOTENCY_CONFLICT"
    status = 409
    default_message = "the idempotency key was used for another call"


class GateError(GatewayError):
    code = "E_GATE"
    default_message = "the gate was not resolved"


class TurnGateTimeout(GateError):
    code = "E_TURN_GATE_TIMEOUT"
    status = 408
    default_message = "the gate timed out before it was resolved"


class TurnGateAborted(GateError):
    code = "E_TURN_GATE_ABORTED"
    status = 499
    default_message = "the gate was aborted"


class LlmExecutionGateNotSupported(GateError):
    code = "E_LLM_EXECUTION_GATE_NOT_SUPPORTED"
    status = 501
    default_message = "this context was built without gate support"


class PipelineError(GatewayError):
    code = "E_PIPELINE"
    default_message = "a pipeline failed"


class InputPipelineError(PipelineError):
    code = "E_INPUT_PIPELINE_ERROR"
    default_message = "the turn input pipeline failed"


class OutputPipelineError(PipelineError):
    code = "E_OUTPUT_PIPELINE_ERROR"
    default_message = "the turn output pipeline failed"


class DispatchPipelineError(PipelineError):
    code = "E_DISPATCH_PIPELINE_ERROR"
    default_message = "a dispatch pipeline failed"


class PipelineShortCircuited(PipelineError):
    code = "E_PIPELINE_SHORT_CIRCUITED"
    default_message = "a middleware neither called next() nor aborted"

    def __init__(self, label: str) -> None:
        super().__init__(
            f"a middleware of the {label} pipeline neither called next() nor aborted",
            help="call next(), or refuse on purpose with ctx.abort() or ctx.nack()",
        )
        self.label = label


class LlmExecutionExecutorError(PipelineError):
    code = "E_LLM_EXECUTION_EXECUTOR_ERROR"
    default_message = "the executor failed"


class ArtifactError(GatewayError):
    code = "E_ARTIFACT"
    status = 422
    default_message = "the artifact could not be queried"


class ReaderNotDescribable(ArtifactError):
    code = "E_READER_NOT_DESCRIBABLE"
    default_message = "the reader cannot be persisted: it has no describe()"


class NoReaderResolver(ArtifactError):
    code = "E_NO_READER_RESOLVER"
    default_message = "no resolver is known for that reader"


class ArtifactGone(ArtifactError):
    code = "E_ARTIFACT_GONE"
    status = 410
    default_message = "the artifact's bytes were deleted"


class ArtifactDamaged(ArtifactError):
    code = "E_ARTIFACT_DAMAGED"
    status = 502
    default_message = "the store returned other bytes than were stored"


class PatternNotSupported(ArtifactError):
    code = "E_PATTERN_NOT_SUPPORTED"
    default_message = "the pattern cannot be run"


class AnswerTooLarge(ArtifactError):
    code = "E_ANSWER_TOO_LARGE"
    default_message = "the answer is too large to return at once"


class TokenEstimateUnavailable(ArtifactError):
    code = "E_TOKEN_ESTIMATE_UNAVAILABLE"
    default_message = "the encoding cannot be loaded"


class JsonParseError(ArtifactError):
    code = "E_JSON_PARSE_ERROR"
    default_message = "the text is not JSON"


class JsonPathInvalid(ArtifactError):
    code = "E_JSON_PATH_INVALID"
    default_message = "the JSONPath cannot be run"


class YamlParseError(ArtifactError):
    code = "E_YAML_PARSE_ERROR"
    default_message = "the text is not YAML"


class XmlParseFailed(ArtifactError):
    code = "E_XML_PARSE_FAILED"
    default_message = "the text is not XML"


class ToonDecodeFailed(ArtifactError):
    code = "E_TOON_DECODE_FAILED"
    default_message = "the text is not TOON"


class StorageError(GatewayError):
    code = "E_STORAGE"
    default_message = "the record could not be stored"


class StoreUnavailable(StorageError):
    code = "E_STORE_UNAVAILABLE"
    status = 503
    default_message = "the store cannot be reached"


class ForeignStore(StorageError):
    code = "E_STORE_NOT_OURS"
    fatal = True
    default_message = "the database cannot be used by this program"


class RecordConflict(StorageError):
    code = "E_RECORD_CONFLICT"
    status = 409
    default_message = "the record contradicts a stored record"


class ResultNotStored(StorageError):
    code = "E_RESULT_NOT_KEPT"
    status = 424
    default_message = "the tool ran, but its result could not be stored"


class OutputTooLarge(StorageError):
    code = "E_OUTPUT_TOO_LARGE"
    status = 413
    default_message = "the output is larger than allowed"


class SpoolQuotaExceeded(StorageError):
    code = "E_SPOOL_QUOTA_EXCEEDED"
    status = 507
    default_message = "the tenant's spool quota is used up"


class PeerMissing(GatewayError):
    code = "E_PEER_MISSING"
    default_message = "an optional parser is not installed"


class YamlPeerMissing(PeerMissing):
    code = "E_YAML_PEER_MISSING"
    default_message = "the YAML parser is not installed"


class ToonPeerMissing(PeerMissing):
    code = "E_TOON_PEER_MISSING"
    default_message = "the TOON parser is not installed"


class TypescriptPeerMissing(PeerMissing):
    code = "E_TYPESCRIPT_PEER_MISSING"
    default_message = "the source code parser is not installed"


class UnsupportedMediaModality(GatewayError):
    code = "E_UNSUPPORTED_MEDIA_MODALITY"
    status = 415
    default_message = "the media kind cannot be expressed for this provider"


class AbortError(GatewayError):
    code = "E_ABORTED"
    status = 499
    default_message = "aborted"


class ValidationException(GatewayError):
    """Validation problems: `details` has one `{message, path, type, context}` per problem."""

    code = "VALIDATION_EXCEPTION"
    status = 422
    default_message = "the value is invalid"

    def __init__(self, details: Iterable[Mapping[str, Any]]) -> None:
        self.details: list[dict[str, Any]] = [dict(detail) for detail in details]
        joined = " and ".join(detail["message"] for detail in self.details)
        super().__init__(joined or None)


def _revived(error: type[GatewayError], args: tuple[Any, ...]) -> GatewayError:
    return error.__new__(error, *args)


def problem(message: str, path: Iterable[str | int] = (), type: str = "invalid", **context: Any) -> dict[str, Any]:
    """Return one entry for `ValidationException.details`."""
    return {"message": message, "path": list(path), "type": type, "context": context}


def message_of(error: BaseException) -> str:
    """Return the message of a `GatewayError`, the text of any other exception, or the class name if it has none."""
    if isinstance(error, GatewayError):
        return error.message
    try:
        return str(error) or type(error).__name__
    except Exception:  # a foreign error may be unable to describe itself
        return type(error).__name__
