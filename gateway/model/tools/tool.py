"""Tool and ArtifactTool: immutable descriptions of what a model may call, and the only way to run it.

The steps of `executor` always have this order: call id, validation, start event, handler,
end event. A tool does not depend on registries, records or rendering.
"""

import inspect
from collections.abc import Awaitable, Callable
from time import time_ns
from types import CoroutineType
from typing import Any, Final, Literal, NoReturn, Protocol, TypeGuard, get_args

from gateway.errors import (
    InvalidInitialRegistryValue,
    InvalidInitialToolValue,
    InvalidToolArgs,
    ToolDownstreamError,
    ValidationException,
    message_of,
    problem,
)
from gateway.model.primitives.canonical_json import call_id
from gateway.model.primitives.containers import DottedDict, Immutable, deep_copy_containers
from gateway.model.schema.schema import ModelClass, Schema
from gateway.model.tools.artifact import is_artifact_class
from gateway.model.turns.events import (
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEvent,
    elapsed_milliseconds,
    from_time_ns,
)

OnCollision = Literal["throw", "replace", "keep"]
ToolHandler = Callable[[dict[str, Any], Any, DottedDict], Any]
ArtifactConstructor = Callable[[], type]


_MISSING: Final[Any] = object()


class ToolContext(Protocol):
    """The part of a context that the executor needs."""

    @property
    def turn_id(self) -> str: ...

    @property
    def dispatch_id(self) -> str: ...

    def emit(self, event: TurnEvent) -> None: ...


class Tool(Immutable):
    """Something a model may call.

    `artifact_constructor` is a function without arguments that returns the artifact class for
    text and bytes results; `on_collision` applies when this tool is the incoming one of a merge.
    `InvalidInitialToolValue` reports all problems of a definition together, as its cause.
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

    __handler: ToolHandler
    name: str
    description: str
    input_schema: Schema
    artifact_constructor: ArtifactConstructor | None
    meta: DottedDict
    ephemeral: bool
    trusted: bool
    on_collision: OnCollision

    def __init__(
        self,
        *,
        name: str = _MISSING,
        description: str = _MISSING,
        input_schema: Schema | type[ModelClass] = _MISSING,
        handler: ToolHandler = _MISSING,
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
        """Return what models are shown: name, description and input schema, as plain data."""
        return {"name": self.name, "description": self.description, "input_schema": self.input_schema.describe()}

    async def validate(self, args: Any) -> Any:
        """Return `args` with defaults filled in. Raises `InvalidToolArgs` with the field errors as its cause."""
        try:
            return await self.input_schema.validate(args)
        except ValidationException as error:
            raise InvalidToolArgs() from error

    def executor(self, ctx: ToolContext, checksum: str | None = None) -> Callable[..., Awaitable[Any]]:
        """Return an async function that runs this tool in `ctx` and can be called many times.

        With a `checksum`, which is the id of one call, call it once.
        """

        async def execute(args: Any = None) -> Any:
            return await self.run({} if args is None else args, ctx, checksum)

        return execute

    async def run(self, args: Any, ctx: ToolContext, checksum: str | None = None) -> Any:
        """Run this tool in `ctx`: validate, emit the start event, call the handler, emit the end event."""
        id = checksum or call_id(self.name, args)
        schema = self.input_schema
        try:
            validated = await schema.validate(args) if schema.has_checks else schema.check(args)
        except ValidationException as error:
            raise InvalidToolArgs() from error
        has_listener = getattr(ctx, "has_listener", None)  # a context without it gets every event
        started = time_ns()
        if has_listener is None or has_listener(ToolExecutionStart):
            # Observers get a copy: their changes must not reach the handler.
            seen = deep_copy_containers(validated)
            ctx.emit(ToolExecutionStart(self.name, ctx.turn_id, ctx.dispatch_id, id, seen, from_time_ns(started)))
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
            ended = time_ns()
            record = getattr(ctx, "record_execution", None)
            if record is not None:
                record(started, ended)
            if has_listener is None or has_listener(ToolExecutionEnd):
                started_at, ended_at = from_time_ns(started), from_time_ns(ended)
                took = elapsed_milliseconds(started_at, ended_at)
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
    """A tool that queries existing artifacts. It returns text, never an artifact."""

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


def artifact_constructor_problems(resolver: Any) -> list[dict[str, Any]]:
    where = ["artifact_constructor"]
    if not callable(resolver) or isinstance(resolver, type):
        return [problem("'artifact_constructor' must be a function that returns an artifact class", where, "type")]
    try:
        found = resolver()
    except Exception as error:  # any error makes the definition invalid
        return [
            problem(f"'artifact_constructor' raised {type(error).__name__}: {message_of(error)}", where, "resolver")
        ]
    if inspect.iscoroutine(found):
        found.close()
        return [problem("'artifact_constructor' must not be async", where, "resolver")]
    if not is_artifact_class(found):
        return [problem(f"'artifact_constructor' returned {found!r}, which is not an artifact class", where, "class")]
    return []


def _text_problems(field: str, value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str) and value:
        return []
    return [problem(f"{field!r} must be a non-empty string", [field], "required" if value is _MISSING else "type")]


def _schema_of(value: Any) -> tuple[Schema | None, list[dict[str, Any]]]:
    where = ["input_schema"]
    if value is _MISSING:
        return None, [problem("'input_schema' is required", where, "required")]
    if isinstance(value, type) and isinstance(value, ModelClass):
        try:
            value = Schema.of_model(value)
        except Exception as error:  # the model class is not ours: it may raise anything
            return None, [problem(f"'input_schema' has no JSON Schema: {message_of(error)}", where, "schema")]
    if not isinstance(value, Schema):
        return None, [
            problem("'input_schema' must be a compiled Schema(...) or a model class, not a look-alike", where, "type")
        ]
    if not value.describes_object:
        return None, [problem("'input_schema' must describe an object", where, "type")]
    return value, []


def _handler_problems(handler: Any) -> list[dict[str, Any]]:
    if callable(handler):
        return []
    return [problem("'handler' must be a callable", ["handler"], "required" if handler is _MISSING else "type")]


def _meta_of(meta: Any) -> tuple[DottedDict | None, list[dict[str, Any]]]:
    try:
        return DottedDict(meta, frozen=True), []
    except InvalidInitialRegistryValue as error:
        return None, [problem(f"'meta' must be a dict with string keys: {error.message}", ["meta"], "type")]


def _bool_problems(field: str, value: Any) -> list[dict[str, Any]]:
    return [] if isinstance(value, bool) else [problem(f"{field!r} must be true or false", [field], "type")]


def _collision_problems(value: Any) -> list[dict[str, Any]]:
    if value in get_args(OnCollision):
        return []
    return [problem("'on_collision' must be 'throw', 'replace' or 'keep'", ["on_collision"], "enum")]
