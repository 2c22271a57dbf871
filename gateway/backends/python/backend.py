"""Tools that are Python functions: in the event loop, in a thread or in a worker process.

A function with exactly the parameters `args`, `ctx` and `meta` gets these; any other gets the validated arguments by
name. The function itself is passed in: other packages decide which functions a document may name. Whether its
parameters fit the input schema is checked before the first call.

    run       sync function                      async function       when the call is cancelled
    loop      in the loop: all callers wait      in the loop          stops at its next await
    thread    in one of a few threads            in the loop          the caller returns, the thread stays busy
    process   in a worker process                in a worker process  killed
"""

import inspect
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from importlib import import_module
from inspect import Parameter, Signature
from time import monotonic, time_ns
from typing import Any, Final, Literal, NoReturn

from gateway.backends.python.executors import ProcessExecutor, ThreadExecutor, WorkerReply, reply_too_large
from gateway.backends.result_conversion import (
    BackendUnusable,
    MediaTemplate,
    enforce_deadline,
    excerpt,
    normalize_result,
    too_many_values,
    type_name,
)
from gateway.errors import AbortError, GateError, ToolError
from gateway.model import (
    LARGE,
    BackendError,
    BackendErrorKind,
    CompletedAwaitable,
    Deadline,
    InMemoryMediaReader,
    Invocation,
    Media,
    OutboundTracer,
    TooManyValues,
    check_values,
    current_deadline,
    reset_deadline,
    run_in_json_thread,
    set_deadline,
)

CONTEXT: Final = frozenset({"args", "ctx", "meta"})
"""A function with exactly these parameters gets the whole call instead of single arguments."""

_NAMEABLE: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def takes_context(function: Callable[..., Any]) -> bool:
    return set(inspect.signature(function).parameters) == CONTEXT


def get_keyword_parameters(signature: Signature) -> frozenset[str] | None:
    """Return the names of all parameters, or `None` if one of them cannot be passed by name."""
    parameters = signature.parameters.values()
    return frozenset(signature.parameters) if all(parameter.kind in _NAMEABLE for parameter in parameters) else None


def find_signature_problems(function: Callable[..., Any], schema: Mapping[str, Any]) -> list[str]:
    """Return the mismatches between the function's parameters and the schema's properties."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ["the parameters of the function cannot be read"]
    if set(parameters) == CONTEXT:
        return []
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    always = {name for name, property in known.items() if isinstance(property, Mapping) and "default" in property}
    always.update(schema.get("required") or ())
    found = [problem for parameter in parameters.values() for problem in _mismatches(parameter, known, always=always)]
    if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        found += [f"the function takes no {name!r}" for name in known if name not in parameters]
    return found


def find_process_problems(function: Callable[..., Any]) -> list[str]:
    """Return the reasons why a worker process cannot import and call this function."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or not name.isidentifier():
        return ["a function for a worker process must be at the top level of an importable module"]
    if getattr(import_module(module), name, None) is not function:
        return [f"{module}:{name} is not this function"]
    if takes_context(function):
        return ["a function that takes args, ctx and meta cannot run in another process"]
    return []


def _mismatches(parameter: Parameter, known: Mapping[str, Any], *, always: set[str]) -> list[str]:
    name = parameter.name
    if parameter.kind is Parameter.POSITIONAL_ONLY:
        return [f"parameter {name!r} cannot be given by name"]
    if parameter.kind not in _NAMEABLE or parameter.default is not Parameter.empty:
        return []
    if name not in known:
        return [f"parameter {name!r} is not in the input schema"]
    return [] if name in always else [f"parameter {name!r} has no default, and the input schema does not require it"]


EXCEPTION_ERRORS: Final[Mapping[int, BackendErrorKind]] = {
    400: "invalid",
    403: "not-permitted",
    404: "not-found",
    409: "conflict",
    410: "not-found",
    422: "invalid",
    429: "unavailable",
    503: "unavailable",
}
"""Kind of error for each status of a `ToolError`; any other status is `failed`."""

_WAITING: Final = 256
_log: Final = logging.getLogger(__name__)
_MOST_PLACES: Final = 12
_PLACE: Final = re.compile(r'^  File "[^"\n]{1,500}", line \d{1,9}, in [^\n]{1,200}$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A function and how to run it. With a `schema`, the parameters are checked against it before the first call."""

    function: Callable[..., Any]
    run: Literal["loop", "thread", "process"] = "thread"
    schema: Mapping[str, Any] | None = None
    json_results: bool = False
    media: MediaTemplate | None = None
    timeout: timedelta | None = None
    parallel: int = 4
    max_result: int = 16 << 20
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


class PythonBackend:
    def __init__(self, tool: PythonFunction) -> None:
        problems = [] if tool.schema is None else find_signature_problems(tool.function, tool.schema)
        if tool.run == "process":
            problems += find_process_problems(tool.function)
        if problems:
            raise BackendUnusable("; ".join(problems), help="make the function and the input schema agree")
        self._tool = tool
        self._signature = inspect.signature(tool.function)
        self._takes_context = set(self._signature.parameters) == CONTEXT
        self._in_thread = tool.run == "thread" and not inspect.iscoroutinefunction(tool.function)
        self._parameter_names = get_keyword_parameters(self._signature)
        name: str = getattr(tool.function, "__name__", "tool")
        self._threads = ThreadExecutor(name, size=tool.parallel, waiting=_WAITING)
        self._workers = ProcessExecutor(
            getattr(tool.function, "__module__", ""),
            name,
            size=tool.parallel,
            limit=tool.max_result,
            environment=tool.environment,
        )

    def run(self, call: Invocation) -> Awaitable[Any]:
        arguments = self._bind_arguments(call)
        return self._run(arguments, call.hops) if call.hops is None else self._run_traced(arguments, call.hops)

    async def _run_traced(self, arguments: dict[str, Any], tracer: OutboundTracer) -> Any:
        since = time_ns()
        try:
            return await self._run(arguments, tracer)
        finally:
            tracer.record_step("backend python", since=since)

    def _run(self, arguments: dict[str, Any], tracer: OutboundTracer | None) -> Awaitable[Any]:
        timeout = self._tool.timeout
        return self._start(arguments, tracer) if timeout is None else self._run_with_timeout(arguments, timeout, tracer)

    async def _run_with_timeout(
        self, arguments: dict[str, Any], timeout: timedelta, tracer: OutboundTracer | None
    ) -> Any:
        """Return the result within the timeout, which is paused while the call waits for its caller."""
        deadline = Deadline(monotonic() + timeout.total_seconds(), monotonic, current_deadline())
        token = set_deadline(deadline)
        try:
            async with enforce_deadline(timeout) as deadline.scope:
                return await self._start(arguments, tracer)
        finally:
            deadline.scope = None
            reset_deadline(token)

    def _start(self, arguments: dict[str, Any], tracer: OutboundTracer | None) -> Awaitable[Any]:
        """Return an awaitable of the result. It is already complete if the function returned text."""
        tool = self._tool
        if tool.run == "process":
            return self._run_in_worker(arguments, {} if tracer is None else tracer.fields)
        if self._in_thread:
            return self._await_result(self._threads.call(partial(tool.function, **arguments)))
        try:
            result = tool.function(**arguments)
        except (Exception, SystemExit) as error:
            _raise_backend_error(error)
        return CompletedAwaitable(result) if type(result) is str else self._await_result(result)

    async def _run_in_worker(self, arguments: dict[str, Any], trace: Mapping[str, str]) -> Any:
        answer = await self._workers.call(arguments, trace=trace)
        if sum(map(len, answer.parts)) < LARGE:
            return self._decode(answer)
        return await run_in_json_thread(self._decode, answer)

    def _decode(self, answer: WorkerReply) -> Any:
        return self._normalize(_decode_reply(answer, limit=self._tool.max_result))

    async def _await_result(self, result: Any) -> Any:
        try:
            if self._in_thread:
                result = await result
            if type(result) is not str and inspect.isawaitable(result):
                result = await result
        except (Exception, SystemExit) as error:
            _raise_backend_error(error)
        return result if type(result) is str else self._normalize(result)

    def _normalize(self, result: Any) -> Any:
        return normalize_result(result, json_results=self._tool.json_results, media=self._tool.media)

    async def close(self) -> None:
        self._threads.close()
        await self._workers.close()

    def _bind_arguments(self, call: Invocation) -> dict[str, Any]:
        if self._takes_context:
            return {"args": dict(call.args), "ctx": call.ctx.dispatch, "meta": call.meta}
        # the most frequent case: binding the signature costs a third of a call
        if self._parameter_names is not None and call.args.keys() == self._parameter_names:
            return dict(call.args)
        try:
            self._signature.bind(**call.args)
        except TypeError as error:
            raise BackendError("failed", f"the function does not fit its arguments: {excerpt(str(error))}") from error
        return dict(call.args)


def _decode_reply(answer: WorkerReply, *, limit: int) -> Any:
    """Rebuild the result from the plain data that a worker sent."""
    head, parts = answer.head, answer.parts
    try:
        match head["kind"]:
            case "text":
                return parts[0].decode("utf-8", "surrogatepass")
            case "bytes":
                return parts[0]
            case "json":
                return _parse_json(parts[0])
            case "media":
                return _build_media(head["fields"][0], parts[0])
            case "media-list":
                return [_build_media(fields, part) for fields, part in zip(head["fields"], parts, strict=True)]
            case "too-large":
                raise reply_too_large(limit)
            case "unknown":
                raise BackendError("failed", f"the tool returned {_type_name(head)}, which cannot leave its process")
            case "error":
                raise _to_error(head)
            case _:
                raise ValueError("no such kind")
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise BackendError("failed", "the worker process did not answer with a result") from error


def _parse_json(content: bytes) -> Any:
    try:
        check_values(content)
    except TooManyValues as error:
        raise too_many_values(error) from None
    return json.loads(content)


def _build_media(fields: Mapping[str, Any], content: bytes) -> Media:
    return Media(**{**fields, "reader": InMemoryMediaReader(content)})


def _to_error(head: Mapping[str, Any]) -> BackendError:
    message, help = head.get("message"), head.get("help")
    if isinstance(message, str):
        failed = _status_error(head.get("status"), message, help=help if isinstance(help, str) else None)
    else:
        failed = _exception_error(_type_name(head))
    traceback = str(head.get("traceback"))
    failed.kind, failed.places = _type_name(head), _places(traceback)
    if not isinstance(message, str):
        where = failed.places.rpartition("\n")[2].strip()
        _log.warning("a tool raised an exception in its process: %s at %s", failed.kind, where)
    failed.__cause__ = RuntimeError(traceback)
    return failed


def _places(traceback: str) -> str:
    """Return the places of a printed traceback, without source lines and the exception's text."""
    return "\n".join(_PLACE.findall(traceback)[-_MOST_PLACES:])


def _raise_backend_error(error: BaseException) -> NoReturn:
    """Raise the error that the function raised as one that the engine knows."""
    if isinstance(error, AbortError | GateError | BackendError):
        raise error
    if isinstance(error, ToolError):
        raise _status_error(error.status, error.message, help=error.help) from error
    _log.warning("a tool raised an exception", exc_info=error)
    raise _exception_error(type_name(error)) from error


def _status_error(status: Any, message: str, *, help: str | None) -> BackendError:
    word = EXCEPTION_ERRORS.get(status, "failed") if type(status) is int else "failed"
    return BackendError(word, excerpt(message), help=help and excerpt(help))


def _exception_error(name: str) -> BackendError:
    """Return an error that names only the class: the exception's text may contain paths, queries or secrets."""
    return BackendError("failed", f"the tool raised {name}")


def _type_name(head: Mapping[str, Any]) -> str:
    return excerpt(str(head.get("type")), limit=80)
