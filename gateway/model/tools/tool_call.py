"""ToolCall: the record of one completed call.

`checksum` is the content hash of tool and raw arguments. It is always computed here; a record
that has a different one was tampered with and is refused.
"""

import json
from datetime import UTC, date, datetime, time
from math import isfinite
from typing import Any, ClassVar, Final, TypeGuard

from gateway.errors import InvalidInitialToolCallValue, ValidationException, problem
from gateway.model.media import Media
from gateway.model.primitives.canonical_json import call_id
from gateway.model.primitives.containers import Immutable, deep_copy_containers
from gateway.model.primitives.deadline import EPOCH, from_microseconds, to_microseconds
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.artifact import Artifact, is_artifact

Results = Artifact | list[Artifact] | Tokenizable | Media | list[Media]

UNNAMED_TOOL: Final = "(unnamed)"
"""Replaces an empty name, so that a call without a name can be recorded."""

_MILLISECONDS_ABOVE: Final = 2e10
"""Epoch numbers above this are milliseconds (2e10 seconds is the year 2603)."""

_LONGEST_INTEGER: Final = 4_000
_MISSING: Final[Any] = object()


class _ToolCallFields:
    """The mutable fields of a record while it is being built."""

    __slots__ = (
        "_args",
        "_moments",
        "_payload",
        "_results",
        "checksum",
        "completed",
        "created",
        "from_artifact_tool",
        "id",
        "inline",
        "is_complete",
        "is_error",
        "replay_compatibility",
        "tool",
        "trusted",
    )

    id: str
    tool: str
    checksum: str
    is_complete: bool
    is_error: bool
    replay_compatibility: str | None
    from_artifact_tool: bool
    inline: bool
    trusted: bool | None
    created: int
    completed: int
    _args: dict[str, Any]
    _moments: tuple[datetime, datetime, datetime] | None
    _payload: Any
    _results: Results


class ToolCall(_ToolCallFields, Immutable):
    """The immutable record of a call. A change is a new record with the same `id`.

    `trusted` is the tool's flag at call time, so that a tool which later takes the same name cannot
    make an old result trusted; `None` leaves the decision to the registry. `created` and `completed`
    are microseconds since 1970; records of `from_result` convert them to datetimes on access.
    """

    __slots__ = ()

    FIELDS: ClassVar = (
        "id",
        "tool",
        "args",
        "checksum",
        "is_complete",
        "is_error",
        "results",
        "payload",
        "replay_compatibility",
        "from_artifact_tool",
        "inline",
        "trusted",
        "created_at",
        "updated_at",
        "completed_at",
    )
    """The fields of a record, which are the arguments of its constructor."""

    def __init__(
        self,
        *,
        id: str = _MISSING,
        tool: str = _MISSING,
        args: dict[str, Any] | str = _MISSING,
        is_complete: bool = _MISSING,
        is_error: bool = _MISSING,
        results: Results = _MISSING,
        created_at: datetime | date | str | float = _MISSING,
        updated_at: datetime | date | str | float = _MISSING,
        completed_at: datetime | date | str | float = _MISSING,
        checksum: str | None = None,
        payload: Any = None,
        replay_compatibility: str | None = None,
        from_artifact_tool: bool = False,
        inline: bool = True,
        trusted: bool | None = None,
        **unknown: object,
    ) -> None:
        check = _Check()
        check.text("id", id)
        check.text("tool", tool)
        decoded = check.args(args)
        computed = check.checksum(tool, decoded, checksum)
        for field, flag in (
            ("is_complete", is_complete),
            ("is_error", is_error),
            ("from_artifact_tool", from_artifact_tool),
            ("inline", inline),
            ("trusted", False if trusted is None else trusted),
        ):
            check.flag(field, flag)
        check.results(results)
        own_payload = check.payload(payload)
        check.replay(payload, replay_compatibility)
        moments = (
            check.moment("created_at", created_at),
            check.moment("updated_at", updated_at),
            check.moment("completed_at", completed_at),
        )
        check.unknown(unknown)
        check.finish()
        self._decide(
            id=id,
            tool=tool,
            checksum=computed,
            is_complete=is_complete,
            is_error=is_error,
            _args=decoded,
            _results=deep_copy_containers(results),
            _payload=own_payload,
            replay_compatibility=replay_compatibility,
            from_artifact_tool=from_artifact_tool,
            inline=inline,
            trusted=trusted,
            created=to_microseconds(moments[0]),
            completed=to_microseconds(moments[2]),
            _moments=moments,
        )

    @classmethod
    def from_result(
        cls,
        *,
        id: str,
        tool: str,
        args: dict[str, Any],
        checksum: str,
        is_error: bool,
        results: Results,
        from_artifact_tool: bool,
        inline: bool,
        trusted: bool,
        created: int,
        completed: int,
    ) -> "ToolCall":
        """Return the record of a call that the gateway executed. The values are neither checked nor copied."""
        parts = _ToolCallFields()
        parts.id = id
        parts.tool = tool
        parts.checksum = checksum
        parts.is_complete = True
        parts.is_error = is_error
        parts._args = args
        parts._results = results
        parts._payload = None
        parts.replay_compatibility = None
        parts.from_artifact_tool = from_artifact_tool
        parts.inline = inline
        parts.trusted = trusted
        parts.created = created
        parts.completed = completed
        parts._moments = None
        record: Any = parts
        record.__class__ = cls  # immutable from here on; `__init__` would take ten times as long
        completed_call: ToolCall = record
        return completed_call

    @property
    def args(self) -> dict[str, Any]:
        """A copy of the raw arguments: the checksum was computed from them, so they must not change."""
        copied: dict[str, Any] = deep_copy_containers(self._args)
        return copied

    @property
    def results(self) -> Results:
        """The results of the call; a list of artifacts or media is a copy with the same members."""
        results: Results = self._results
        return deep_copy_containers(results) if isinstance(results, list) else results  # only lists are mutable

    @property
    def created_at(self) -> datetime:
        return from_microseconds(self.created) if self._moments is None else self._moments[0]

    @property
    def updated_at(self) -> datetime:
        return from_microseconds(self.completed) if self._moments is None else self._moments[1]

    @property
    def completed_at(self) -> datetime:
        return from_microseconds(self.completed) if self._moments is None else self._moments[2]

    @property
    def payload(self) -> Any:
        """A copy of the vendor's opaque data."""
        return deep_copy_containers(self._payload)

    @staticmethod
    def is_tool_call(value: object) -> "TypeGuard[ToolCall]":
        return isinstance(value, ToolCall)

    def replace(self, **changes: Any) -> "ToolCall":
        """Return a new record with some fields changed; the checksum is recomputed."""
        fields = {name: getattr(self, name) for name in self.FIELDS if name != "checksum"}
        return ToolCall(**{**fields, **changes})

    def __repr__(self) -> str:
        return f"ToolCall({self.id!r}, {self.tool!r}, is_error={self.is_error})"


def decode_arguments(args: Any) -> dict[str, Any]:
    """Return arguments as a new dict, from a dict or from JSON text. Raises `ValueError` for invalid arguments."""
    if isinstance(args, str):
        args = _parse(args)
    if not isinstance(args, dict):
        raise ValueError(f"the arguments must be a JSON object, not {type(args).__name__}")
    decoded: dict[str, Any] = deep_copy_containers(args)
    return decoded


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_int=_integer)
    except RecursionError:
        raise ValueError("the argument text is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the argument text is not JSON: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _integer(digits: str) -> int | float:
    """Parse an integer. Python refuses very long ones; JavaScript parses integers past 308 digits as infinity."""
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)


def parse_timestamp(value: Any) -> datetime:
    """Return an aware datetime from a datetime, date, ISO text or epoch number. Naive values are UTC."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
        value = datetime.fromtimestamp(value / 1000 if abs(value) > _MILLISECONDS_ABOVE else value, UTC)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise ValueError(f"not a timestamp: {type(value).__name__}")
    return value if value.utcoffset() is not None else value.replace(tzinfo=UTC)


class _Check:
    """Collects all problems of a record, so that one error reports them together."""

    def __init__(self) -> None:
        self._problems: list[dict[str, Any]] = []

    def finish(self) -> None:
        if self._problems:
            found = ValidationException(self._problems)
            raise InvalidInitialToolCallValue(f"the tool call record is invalid: {found.message}") from found

    def text(self, field: str, value: Any) -> None:
        if not isinstance(value, str) or not value:
            self._add(field, f"{field!r} must be a non-empty string", value)

    def flag(self, field: str, value: Any) -> None:
        if not isinstance(value, bool):
            self._add(field, f"{field!r} must be true or false", value)

    def args(self, value: Any) -> dict[str, Any] | None:
        try:
            return decode_arguments(value)
        except ValueError as error:
            self._add("args", "'args' is required" if value is _MISSING else str(error), value)
            return None

    def checksum(self, tool: Any, args: dict[str, Any] | None, claimed: str | None) -> str:
        if args is None or not isinstance(tool, str):
            return ""
        try:
            computed = call_id(tool, args)
        except (TypeError, ValueError) as error:
            self._add("args", f"the arguments cannot be hashed: {error}", args)
            return ""
        if claimed is not None and claimed != computed:
            self._add("checksum", "the checksum does not belong to this tool and these arguments", claimed)
        return computed

    def results(self, value: Any) -> None:
        if isinstance(value, Tokenizable | Media) or is_artifact(value):
            return
        items = value if isinstance(value, list) else []
        if items and (all(isinstance(item, Media) for item in items) or all(is_artifact(item) for item in items)):
            return
        self._add("results", "'results' must be an artifact, a media, a list of either, or a Tokenizable", value)

    def payload(self, value: Any) -> Any:
        try:
            return deep_copy_containers(value)
        except ValueError as error:
            self._add("payload", f"the payload cannot be stored: {error}", value)
            return None

    def replay(self, payload: Any, compatibility: Any) -> None:
        if compatibility is None and payload is not None:
            self._add("replay_compatibility", "a payload needs 'replay_compatibility'", _MISSING)
        elif compatibility is not None:
            self.text("replay_compatibility", compatibility)

    def moment(self, field: str, value: Any) -> datetime:
        try:
            return parse_timestamp(value)
        except (ValueError, OverflowError, OSError):
            self._add(field, f"{field!r} must be a datetime, an ISO text or an epoch number", value)
            return EPOCH

    def unknown(self, fields: dict[str, object]) -> None:
        for field in fields:
            self._problems.append(problem(f"{field!r} is not a field of a tool call", [field], "unknown"))

    def _add(self, field: str, message: str, value: Any) -> None:
        self._problems.append(problem(message, [field], "required" if value is _MISSING else "invalid"))
