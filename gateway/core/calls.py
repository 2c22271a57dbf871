"""ToolCall: the settled record of one call. It exists only once the call is over.

`checksum` is the content hash of tool and raw arguments, always computed here; a record that
arrives with a different one was tampered with and is refused.
"""

import json
from datetime import UTC, date, datetime, time
from math import isfinite
from typing import Any, ClassVar, Final, TypeGuard

from gateway.core.artifacts import SpooledArtifact, is_artifact
from gateway.core.canonical import call_id
from gateway.core.immutable import Immutable
from gateway.core.media import Media
from gateway.core.moments import EPOCH, microseconds, moment
from gateway.core.registry import copy_containers
from gateway.core.tokens import Tokenizable
from gateway.errors import InvalidInitialToolCallValue, ValidationException, problem

Results = SpooledArtifact | list[SpooledArtifact] | Tokenizable | Media | list[Media]

UNNAMED_TOOL: Final = "(unnamed)"
"""Stands for an empty name, so that the record of such a call can exist."""

_MILLISECONDS_ABOVE: Final = 2e10
"""Epoch numbers past this are milliseconds (2e10 seconds is the year 2603)."""

_LONGEST_INTEGER: Final = 4_000
_MISSING: Final[Any] = object()


class _Parts:
    """What a record is made of, as long as it is being made."""

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


class ToolCall(_Parts, Immutable):
    """Everything there is to know of a call. A change is a new record with the same `id`.

    `trusted` remembers the tool's flag at call time, so that another tool which later takes the
    name cannot lift an old result; `None` leaves the decision to the registry. `created` and
    `completed` are microseconds since 1970; the core's own records make datetimes of them when somebody asks.
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
    """What a record is made of, and what its constructor takes."""

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
            _results=copy_containers(results),
            _payload=own_payload,
            replay_compatibility=replay_compatibility,
            from_artifact_tool=from_artifact_tool,
            inline=inline,
            trusted=trusted,
            created=microseconds(moments[0]),
            completed=microseconds(moments[2]),
            _moments=moments,
        )

    @classmethod
    def of_settled(
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
        """The record of a call that the core itself has settled: its parts were checked on the way and are its own."""
        parts = _Parts()
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
        record.__class__ = cls  # from here on immutable: made as `__init__` does, it would take ten times as long
        settled: ToolCall = record
        return settled

    @property
    def args(self) -> dict[str, Any]:
        """The raw arguments: a copy, so that nobody can change what the checksum was computed from."""
        copied: dict[str, Any] = copy_containers(self._args)
        return copied

    @property
    def results(self) -> Results:
        """What the call produced; a list of artifacts or media is a copy with the same members."""
        results: Results = self._results
        return copy_containers(results) if isinstance(results, list) else results  # nothing else holds others

    @property
    def created_at(self) -> datetime:
        return moment(self.created) if self._moments is None else self._moments[0]

    @property
    def updated_at(self) -> datetime:
        return moment(self.completed) if self._moments is None else self._moments[1]

    @property
    def completed_at(self) -> datetime:
        return moment(self.completed) if self._moments is None else self._moments[2]

    @property
    def payload(self) -> Any:
        """Opaque data of the vendor, as a copy."""
        return copy_containers(self._payload)

    @staticmethod
    def is_tool_call(value: object) -> "TypeGuard[ToolCall]":
        return isinstance(value, ToolCall)

    def replace(self, **changes: Any) -> "ToolCall":
        """A new record with some fields changed; the checksum follows tool and arguments."""
        fields = {name: getattr(self, name) for name in self.FIELDS if name != "checksum"}
        return ToolCall(**{**fields, **changes})

    def __repr__(self) -> str:
        return f"ToolCall({self.id!r}, {self.tool!r}, is_error={self.is_error})"


def decode_args(args: Any) -> dict[str, Any]:
    """Arguments as a dict of their own, from a dict or from JSON text. Raises `ValueError` that names the defect."""
    if isinstance(args, str):
        args = _parsed(args)
    if not isinstance(args, dict):
        raise ValueError(f"the arguments are a JSON object, not {type(args).__name__}")
    decoded: dict[str, Any] = copy_containers(args)
    return decoded


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_int=_integer)
    except RecursionError:
        raise ValueError("the argument text is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the argument text is not JSON: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _integer(digits: str) -> int | float:
    """Python refuses to read very long integers; JavaScript reads every one past 308 digits as infinity."""
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)


def as_moment(value: Any) -> datetime:
    """An aware datetime from a datetime, date, ISO text or epoch number. Naive values are UTC."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
        value = datetime.fromtimestamp(value / 1000 if abs(value) > _MILLISECONDS_ABOVE else value, UTC)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise ValueError(f"not a moment: {type(value).__name__}")
    return value if value.utcoffset() is not None else value.replace(tzinfo=UTC)


class _Check:
    """Collects every problem of a record before one error is raised."""

    def __init__(self) -> None:
        self._problems: list[dict[str, Any]] = []

    def finish(self) -> None:
        if self._problems:
            found = ValidationException(self._problems)
            raise InvalidInitialToolCallValue(f"the tool call record is invalid: {found.message}") from found

    def text(self, field: str, value: Any) -> None:
        if not isinstance(value, str) or not value:
            self._add(field, f"{field!r} is a non-empty string", value)

    def flag(self, field: str, value: Any) -> None:
        if not isinstance(value, bool):
            self._add(field, f"{field!r} is true or false", value)

    def args(self, value: Any) -> dict[str, Any] | None:
        try:
            return decode_args(value)
        except ValueError as error:
            self._add("args", "'args' is required" if value is _MISSING else str(error), value)
            return None

    def checksum(self, tool: Any, args: dict[str, Any] | None, given: str | None) -> str:
        if args is None or not isinstance(tool, str):
            return ""
        try:
            computed = call_id(tool, args)
        except (TypeError, ValueError) as error:
            self._add("args", f"the arguments cannot be hashed: {error}", args)
            return ""
        if given is not None and given != computed:
            self._add("checksum", "the checksum does not belong to this tool and these arguments", given)
        return computed

    def results(self, value: Any) -> None:
        if isinstance(value, Tokenizable | Media) or is_artifact(value):
            return
        items = value if isinstance(value, list) else []
        if items and (all(isinstance(item, Media) for item in items) or all(is_artifact(item) for item in items)):
            return
        self._add("results", "'results' is an artifact, a media, a list of either, or a Tokenizable", value)

    def payload(self, value: Any) -> Any:
        try:
            return copy_containers(value)
        except ValueError as error:
            self._add("payload", f"the payload cannot be kept: {error}", value)
            return None

    def replay(self, payload: Any, compatibility: Any) -> None:
        if compatibility is None and payload is not None:
            self._add("replay_compatibility", "a payload needs 'replay_compatibility'", _MISSING)
        elif compatibility is not None:
            self.text("replay_compatibility", compatibility)

    def moment(self, field: str, value: Any) -> datetime:
        try:
            return as_moment(value)
        except (ValueError, OverflowError, OSError):
            self._add(field, f"{field!r} is a datetime, an ISO text or an epoch number", value)
            return EPOCH

    def unknown(self, fields: dict[str, object]) -> None:
        for field in fields:
            self._problems.append(problem(f"{field!r} is not a field of a tool call", [field], "unknown"))

    def _add(self, field: str, message: str, value: Any) -> None:
        self._problems.append(problem(message, [field], "required" if value is _MISSING else "invalid"))
