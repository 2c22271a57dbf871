"""Attributes that come again with every call of a tool, encoded once, and how many of them are kept."""

from collections.abc import Callable, Hashable
from typing import Any, Final

from gateway.snapshot import DeclaredTool
from gateway.telemetry import names
from gateway.telemetry.settings import Capture
from gateway.telemetry.wire_format import (
    Attributes,
    Value,
    event_body,
    of_log,
    of_span,
    span_name,
)

_MOST: Final = 16_384
_MOST_KEYS: Final = 32


class Remembered:
    """Encoded attributes by what they are made of. Full, it begins anew: what comes often is soon there again."""

    def __init__(self) -> None:
        self._found: dict[Hashable, bytes] = {}

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= _MOST:
                self._found.clear()
            found = self._found[key] = make()
        return found


class ToolParts:
    """A tool of one catalogue and revision. Query tools are forged, not declared."""

    __slots__ = (
        *("_attributes", "_keys", "_known", "capture", "executing", "of_execution", "of_request", "of_start"),
        *("receiving", "redact", "started", "tool"),
    )

    def __init__(
        self,
        name: str,
        tool: DeclaredTool | None,
        *,
        catalogue: str,
        revision: str,
        capture: Capture,
        redact: tuple[str, ...],
        attributes: Attributes,
    ) -> None:
        self.tool = tool
        self.capture = capture
        self.redact = redact
        self._attributes = attributes
        self._known = frozenset((tool.input_schema or {}).get("properties", ())) if tool is not None else None
        self._keys: dict[tuple[str, ...], bytes] = {}
        common: dict[str, Value] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: name,
            names.CATALOGUE: catalogue,
        }
        more: dict[str, Value] = {
            names.TOOL_TYPE: names.tool_type(None if tool is None else tool.backend),
            names.CONFIG_REVISION: revision,
            names.POLICY_REVISION: revision,
        }
        if tool is not None:
            common[names.TIER] = tool.trust.tier.name
            more[names.TOOL_KIND] = tool.backend
            more[names.ARTIFACT_CLASS] = tool.artifact
            if tool.trust.flags:
                more[names.TOOL_FLAGS] = sorted(tool.trust.flags)
            if tool.upstream is not None:
                more[names.UPSTREAM] = tool.upstream
        shared, own = attributes.all(common), attributes.all(more)
        self.of_request = of_span(shared)
        self.of_execution = of_span((*shared, *own))
        self.of_start = of_log((*shared, *own))
        self.receiving = span_name(names.call_span(name), attributes.limit)
        self.executing = span_name(names.execute_span(name), attributes.limit)
        self.started = event_body(f"{name} was called", attributes.limit)

    def argument_keys(self, args: dict[str, Any]) -> bytes:
        """Of what the tool declares, which of it was given: other names are the caller's words."""
        given = tuple(args)
        found = self._keys.get(given)
        if found is None:
            known = [key for key in given if self._known is not None and key in self._known][:_MOST_KEYS]
            found = of_span([self._attributes.encoded(names.ARGUMENT_KEYS, known)]) if known else b""
            if len(self._keys) < _MOST_KEYS:
                self._keys[given] = found
        return found
