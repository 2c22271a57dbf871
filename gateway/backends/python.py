"""Tools that are Python functions: in the event loop, in a thread or in a process of their own.

A function with exactly the parameters `args`, `ctx` and `meta` gets these; any other gets the validated arguments by
name. Which functions a document may name is decided elsewhere: the function itself is passed in.

    run       sync function                      async function       given up on
    loop      in the loop: everyone waits        in the loop          at its next await
    thread    in one of a few threads            in the loop          the caller gets away, the thread stays taken
    process   in a worker process                in a worker process  killed
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, Final, Literal, NoReturn

from gateway.backends.refusals import BackendUnusable, excerpt, type_name, within
from gateway.backends.results import MediaTemplate, shaped, too_many_values
from gateway.backends.signatures import by_name, problems_of, process_problems, takes_context
from gateway.backends.threads import Threads
from gateway.backends.workers import Answer, Workers, too_large
from gateway.core.beginning import Done
from gateway.core.bounded_json import LARGE, TooManyValues, check_values, read_apart
from gateway.core.deadlines import Deadline, current_deadline, reset_deadline, set_deadline
from gateway.core.media import InMemoryMediaReader, Media
from gateway.errors import AbortError, GateError, ToolError
from gateway.governance.ports import BackendFailed, ErrorWord, Invocation

WORDS: Final[Mapping[int, ErrorWord]] = {
    400: "invalid",
    403: "not-permitted",
    404: "not-found",
    409: "conflict",
    410: "not-found",
    422: "invalid",
    429: "unavailable",
    503: "unavailable",
}
"""What the status of a `ToolError` means; any other is `failed`."""

_WAITING: Final = 256


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A function and how to run it. With a `schema`, that it fits is checked before the first call."""

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
        problems = [] if tool.schema is None else problems_of(tool.function, tool.schema)
        if tool.run == "process":
            problems += process_problems(tool.function)
        if problems:
            raise BackendUnusable("; ".join(problems), help="make the function and the input schema agree")
        self._tool = tool
        self._takes_context = takes_context(tool.function)
        self._in_thread = tool.run == "thread" and not inspect.iscoroutinefunction(tool.function)
        self._signature = inspect.signature(tool.function)
        self._exactly = by_name(self._signature)
        name: str = getattr(tool.function, "__name__", "tool")
        self._threads = Threads(name, size=tool.parallel, waiting=_WAITING)
        self._workers = Workers(
            getattr(tool.function, "__module__", ""),
            name,
            size=tool.parallel,
            limit=tool.max_result,
            environment=tool.environment,
        )

    def run(self, call: Invocation) -> Awaitable[Any]:
        arguments = self._arguments(call)
        timeout = self._tool.timeout
        return self._result(arguments) if timeout is None else self._in_time(arguments, timeout)

    async def _in_time(self, arguments: dict[str, Any], timeout: timedelta) -> Any:
        """Its time stands still while it waits for its caller."""
        deadline = Deadline(monotonic() + timeout.total_seconds(), monotonic, current_deadline())
        token = set_deadline(deadline)
        try:
            async with within(timeout) as deadline.scope:
                return await self._result(arguments)
        finally:
            deadline.scope = None
            reset_deadline(token)

    def _result(self, arguments: dict[str, Any]) -> Awaitable[Any]:
        """Of most functions it is there as soon as they return: nothing is waited for then."""
        tool = self._tool
        if tool.run == "process":
            return self._of_worker(arguments)
        if self._in_thread:
            return self._waited_for(self._threads.call(partial(tool.function, **arguments)))
        try:
            result = tool.function(**arguments)
        except (Exception, SystemExit) as error:
            _fail(error)
        return Done(result) if type(result) is str else self._waited_for(result)

    async def _of_worker(self, arguments: dict[str, Any]) -> Any:
        answer = await self._workers.call(arguments)
        if sum(map(len, answer.parts)) < LARGE:
            return self._rebuilt(answer)
        return await read_apart(self._rebuilt, answer)

    def _rebuilt(self, answer: Answer) -> Any:
        return self._shaped(_received(answer, limit=self._tool.max_result))

    async def _waited_for(self, result: Any) -> Any:
        try:
            if self._in_thread:
                result = await result
            if type(result) is not str and inspect.isawaitable(result):
                result = await result
        except (Exception, SystemExit) as error:
            _fail(error)
        return result if type(result) is str else self._shaped(result)

    def _shaped(self, result: Any) -> Any:
        return shaped(result, json_results=self._tool.json_results, media=self._tool.media)

    async def close(self) -> None:
        self._threads.close()
        await self._workers.close()

    def _arguments(self, call: Invocation) -> dict[str, Any]:
        if self._takes_context:
            return {"args": dict(call.args), "ctx": call.ctx.dispatch, "meta": call.meta}
        # by far the most frequent, and asking costs a third of a call
        if self._exactly is not None and call.args.keys() == self._exactly:
            return dict(call.args)
        try:
            self._signature.bind(**call.args)
        except TypeError as error:
            raise BackendFailed("failed", f"the function does not fit its arguments: {excerpt(str(error))}") from error
        return dict(call.args)


def _received(answer: Answer, *, limit: int) -> Any:
    """What a worker sent, rebuilt from plain data."""
    head, parts = answer.head, answer.parts
    try:
        match head["kind"]:
            case "text":
                return parts[0].decode("utf-8", "surrogatepass")
            case "bytes":
                return parts[0]
            case "json":
                return _read(parts[0])
            case "media":
                return _media(head["fields"][0], parts[0])
            case "media-list":
                return [_media(fields, part) for fields, part in zip(head["fields"], parts, strict=True)]
            case "too-large":
                raise too_large(limit)
            case "unknown":
                raise BackendFailed("failed", f"the tool returned {_name(head)}, which cannot leave its process")
            case "error":
                raise _told(head)
            case _:
                raise ValueError("no such kind")
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise BackendFailed("failed", "the worker process answered something else than a result") from error


def _read(content: bytes) -> Any:
    try:
        check_values(content)
    except TooManyValues as error:
        raise too_many_values(error) from None
    return json.loads(content)


def _media(fields: Mapping[str, Any], content: bytes) -> Media:
    return Media(**{**fields, "reader": InMemoryMediaReader(content)})


def _told(head: Mapping[str, Any]) -> BackendFailed:
    message, help = head.get("message"), head.get("help")
    if isinstance(message, str):
        failed = _refused(head.get("status"), message, help=help if isinstance(help, str) else None)
    else:
        failed = _raised(_name(head))
    failed.__cause__ = RuntimeError(str(head.get("traceback")))
    return failed


def _fail(error: BaseException) -> NoReturn:
    """What a function raises is its author's: it may be anything."""
    if isinstance(error, AbortError | GateError | BackendFailed):
        raise error
    if isinstance(error, ToolError):
        raise _refused(error.status, error.message, help=error.help) from error
    raise _raised(type_name(error)) from error


def _refused(status: Any, message: str, *, help: str | None) -> BackendFailed:
    word = WORDS.get(status, "failed") if type(status) is int else "failed"
    return BackendFailed(word, excerpt(message), help=help and excerpt(help))


def _raised(name: str) -> BackendFailed:
    """Only the class is named: what an exception says may hold paths, queries or secrets."""
    return BackendFailed("failed", f"the tool raised {name}")


def _name(head: Mapping[str, Any]) -> str:
    return excerpt(str(head.get("type")), limit=80)
