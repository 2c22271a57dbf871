"""Tool and ArtifactTool: immutable descriptions of something a model may call, and the one way to run them.

The order of steps in `executor` is the contract: call id, validation, start event, handler,
end event. A tool knows nothing of registries, records or rendering.
"""

import inspect
from collections.abc import Awaitable, Callable
from time import time_ns
from types import CoroutineType
from typing import Any, Final, Literal, NoReturn, Protocol, TypeGuard, get_args

from gateway.core.canonical import call_id
from gateway.core.events import Event, ToolExecutionEnd, ToolExecutionStart, milliseconds, moment_of, now
from gateway.core.immutable import Immutable
from gateway.core.registry import Registry, copy_containers
from gateway.core.schemas import ModelClass, Schema
from gateway.errors import (
    InvalidInitialRegistryValue,
    InvalidInitialToolValue,
    InvalidToolArgs,
    ToolDownstreamError,
    ValidationException,
    message_of,
    problem,
)

OnCollision = Literal["throw", "replace", "keep"]
Handler = Callable[[dict[str, Any], Any, Registry], Any]
ArtifactConstructor = Callable[[], type]

ARTIFACT_METHODS: Final = ("head", "tail", "grep", "cat", "byte_length", "line_count", "estimate_tokens")
"""A class whose instances offer these is an artifact class, whatever it derives from."""

_MISSING: Final[Any] = object()


class ToolContext(Protocol):
    """What the executor needs to know of the context it runs in."""

    @property
    def turn_id(self) -> str: ...

    @property
    def dispatch_id(self) -> str: ...

    def emit(self, event: Event) -> None: ...


class Tool(Immutable):
    """Something a model may call.

    `artifact_constructor` is a function without arguments that returns the artifact class for
    text and bytes results; `on_collision` is read when this tool is the incoming one of a merge.
    Every problem of a definition is reported at once, as the cause of `InvalidInitialToolValue`.
    """

    __slots__ = (
        "__handler",
        "artifact_constructor",
        "description",
        "ephemeral",
        "input_schema",
        "meta",
        "name",
        "on_collision",
        "trusted",
    )

    __handler: Handler
    name: str
    description: str
    input_schema: Schema
    artifact_constructor: ArtifactConstructor | None
    meta: Registry
    ephemeral: bool
    trusted: bool
    on_collision: OnCollision

    def __init__(
        self,
        *,
        name: str = _MISSING,
        description: str = _MISSING,
        input_schema: Schema | type[ModelClass] = _MISSING,
        handler: Handler = _MISSING,
        artifact_constructor: ArtifactConstructor | None = None,
        meta: dict[str, Any] | None = None,
        ephemeral: bool = False,
        trusted: bool = False,
        on_collision: OnCollision = "throw",
        **unknown: object,
    ) -> None:
        schema, schema_problems = _schema_of(input_schema)
        registry, meta_problems = _meta_of(meta)
        problems = [
            *_text_problems("name", name),
            *_text_problems("description", description),
            *schema_problems,
            *_handler_problems(handler),
            *self._constructor_problems(artifact_constructor),
            *meta_problems,
            *_bool_problems("ephemeral", ephemeral),
            *_bool_problems("trusted", trusted),
            *_collision_problems(on_collision),
            *(problem(f"{key!r} is not a field of a tool", [key], "unknown") for key in unknown),
        ]
        if problems:
            found = ValidationException(problems)
            raise InvalidInitialToolValue(f"the tool definition is invalid: {found.message}") from found
        self._decide(
            name=name,
            description=description,
            input_schema=schema,
            artifact_constructor=artifact_constructor,
            meta=registry,
            ephemeral=ephemeral,
            trusted=trusted,
            on_collision=on_collision,
            _Tool__handler=handler,
        )

    @staticmethod
    def is_tool(value: object) -> "TypeGuard[Tool]":
        return isinstance(value, Tool)

    def describe(self) -> dict[str, Any]:
        """What a model may know: name, description and input schema, as plain data."""
        return {"name": self.name, "description": self.description, "input_schema": self.input_schema.describe()}

    async def validate(self, args: Any) -> Any:
        """`args` with defaults filled in; raises `InvalidToolArgs` with the field errors as its cause."""
        try:
            return await self.input_schema.validate(args)
        except ValidationException as error:
            raise InvalidToolArgs() from error

    def executor(self, ctx: ToolContext, checksum: str | None = None) -> Callable[..., Awaitable[Any]]:
        """An async function that runs this tool in `ctx`; keep it and call it as often as needed.

        With a `checksum` it is for one call, whose id is known already.
        """

        async def execute(args: Any = None) -> Any:
            return await self.run({} if args is None else args, ctx, checksum)

        return execute

    async def run(self, args: Any, ctx: ToolContext, checksum: str | None = None) -> Any:
        """Run this tool in `ctx`: validate, tell of the start, call the handler, tell of the end."""
        id = checksum or call_id(self.name, args)
        schema = self.input_schema
        try:
            validated = await schema.validate(args) if schema.has_checks else schema.accepted(args)
        except ValidationException as error:
            raise InvalidToolArgs() from error
        hears = getattr(ctx, "hears", None)  # a context that cannot tell is told everything
        started = time_ns()
        if hears is None or hears(ToolExecutionStart):
            # Observers get their own copy: what they do to it must not reach the handler.
            seen = copy_containers(validated)
            ctx.emit(ToolExecutionStart(self.name, ctx.turn_id, ctx.dispatch_id, id, seen, moment_of(started)))
        is_error = True
        try:
            value = self.__handler(validated, ctx, self.meta)
            if type(value) is CoroutineType or inspect.isawaitable(value):
                value = await value
            is_error = False
            return value
        except Exception as error:  # cancellation and interpreter exit pass through unwrapped
            raise ToolDownstreamError() from error
        finally:
            if hears is None or hears(ToolExecutionEnd):
                started_at, ended_at = moment_of(started), now()
                took = milliseconds(started_at, ended_at)
                names = (self.name, ctx.turn_id, ctx.dispatch_id, id)
                ctx.emit(ToolExecutionEnd(*names, started_at, ended_at, took, is_error))

    def _constructor_problems(self, resolver: Any) -> list[dict[str, Any]]:
        if resolver is None:
            return []
        return artifact_constructor_problems(resolver)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a tool holds its handler and cannot be serialised; use describe()")


class ArtifactTool(Tool):
    """A tool that queries existing artifacts. Its answer is text, so there is nothing to query in turn."""

    __slots__ = ()

    @staticmethod
    def is_artifact_tool(value: object) -> "TypeGuard[ArtifactTool]":
        return isinstance(value, ArtifactTool)

    def _constructor_problems(self, resolver: Any) -> list[dict[str, Any]]:
        if resolver is None:
            return []
        return [
            problem("'artifact_constructor' is forbidden on an artifact tool", ["artifact_constructor"], "forbidden")
        ]


def is_artifact_class(value: object) -> TypeGuard[type]:
    return isinstance(value, type) and all(callable(getattr(value, method, None)) for method in ARTIFACT_METHODS)


def artifact_constructor_problems(resolver: Any) -> list[dict[str, Any]]:
    where = ["artifact_constructor"]
    if not callable(resolver) or isinstance(resolver, type):
        return [problem("'artifact_constructor' is a function that returns an artifact class", where, "type")]
    try:
        found = resolver()
    except Exception as error:  # whatever it raises, the definition is at fault
        return [
            problem(f"'artifact_constructor' raised {type(error).__name__}: {message_of(error)}", where, "resolver")
        ]
    if inspect.iscoroutine(found):
        found.close()
        return [problem("'artifact_constructor' is not async", where, "resolver")]
    if not is_artifact_class(found):
        return [problem(f"'artifact_constructor' returned {found!r}, which is not an artifact class", where, "class")]
    return []


def _text_problems(field: str, value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str) and value:
        return []
    return [problem(f"{field!r} is a non-empty string", [field], "required" if value is _MISSING else "type")]


def _schema_of(value: Any) -> tuple[Schema | None, list[dict[str, Any]]]:
    where = ["input_schema"]
    if value is _MISSING:
        return None, [problem("'input_schema' is required", where, "required")]
    if isinstance(value, type) and isinstance(value, ModelClass):
        try:
            value = Schema.of_model(value)
        except Exception as error:  # the model is the author's: it may raise anything
            return None, [problem(f"'input_schema' has no JSON Schema: {message_of(error)}", where, "schema")]
    if not isinstance(value, Schema):
        return None, [
            problem("'input_schema' is a compiled Schema(...) or a model class, not a look-alike", where, "type")
        ]
    if not value.describes_object:
        return None, [problem("'input_schema' must describe an object", where, "type")]
    return value, []


def _handler_problems(handler: Any) -> list[dict[str, Any]]:
    if callable(handler):
        return []
    return [problem("'handler' is a callable", ["handler"], "required" if handler is _MISSING else "type")]


def _meta_of(meta: Any) -> tuple[Registry | None, list[dict[str, Any]]]:
    try:
        return Registry(meta, frozen=True), []
    except InvalidInitialRegistryValue as error:
        return None, [problem(f"'meta' is a dict with string keys: {error.message}", ["meta"], "type")]


def _bool_problems(field: str, value: Any) -> list[dict[str, Any]]:
    return [] if isinstance(value, bool) else [problem(f"{field!r} is true or false", [field], "type")]


def _collision_problems(value: Any) -> list[dict[str, Any]]:
    if value in get_args(OnCollision):
        return []
    return [problem("'on_collision' is 'throw', 'replace' or 'keep'", ["on_collision"], "enum")]
