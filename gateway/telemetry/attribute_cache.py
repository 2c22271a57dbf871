"""Attributes of spans that many calls share, made once and cached. Exporters encode each of them once."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from gateway.registries import DeclaredTool, Position
from gateway.telemetry import names
from gateway.telemetry.export.wire_format import BoundedCache
from gateway.telemetry.gateway_span import SharedAttributes, Value
from gateway.telemetry.settings import CaptureSettings

_MOST_KEYS: Final = 32
_LONGEST_ID: Final = 128


class ContentHashes(Protocol):
    """Keyed hashes, the same as in the decision log. They stand for names of principals."""

    def name(self, text: str) -> str: ...

    def arguments(self, fingerprint: bytes) -> str: ...

    def result(self, content: bytes) -> str: ...


class CommonAttributes:
    """Attributes that do not depend on the tool."""

    def __init__(self, limit: int, hashes: ContentHashes, *, names_callers: bool = False) -> None:
        self._hashes = hashes
        self._names_callers = names_callers
        self.longest_id = min(_LONGEST_ID, limit)
        """Maximum characters of a request id, which the caller chooses."""
        self.decisions = BoundedCache(_of_decision)
        """By decision and reason."""
        self.peers = BoundedCache(_of_peer)
        self.requests = BoundedCache(_of_request)
        """By method, version of MCP and route of REST."""
        self.principals = BoundedCache(self._of_principal)
        """By subject and tenant."""
        self.standings = BoundedCache(self._of_standing)
        """By subject, tenant, definition, policy row and deciding rules of a call."""

    def _of_standing(
        self, of: tuple[str, str | None, str | None, Position | None, tuple[str, ...]]
    ) -> SharedAttributes:
        subject, tenant, definition, row, rules = of
        attributes: dict[str, Any] = dict(self.principals[subject, tenant])
        if row is not None:
            attributes[names.POLICY_ROW] = str(row)
        if definition:
            attributes[names.DEFINITION] = definition
        if rules:
            attributes[names.POLICY_RULE] = rules
        return SharedAttributes(attributes)

    def _of_principal(self, named: tuple[str, str | None]) -> SharedAttributes:
        subject, tenant = named
        of_tenant = {} if tenant is None else {names.TENANT: self._hashes.name(tenant)}
        of_name = {names.PRINCIPAL_NAME: subject} if self._names_callers else {}
        return SharedAttributes({names.PRINCIPAL: self._hashes.name(subject), **of_tenant, **of_name})


def _of_decision(decided: tuple[str, str]) -> SharedAttributes:
    return SharedAttributes({names.DECISION: decided[0], names.DECISION_REASON: decided[1]})


def _of_peer(peer: tuple[str, int]) -> SharedAttributes:
    return SharedAttributes({names.CLIENT_ADDRESS: peer[0], names.CLIENT_PORT: peer[1]})


def _of_request(kind: tuple[str, str | None, str | None]) -> SharedAttributes:
    method, version, route = kind
    attributes: dict[str, Value] = {names.NETWORK_TRANSPORT: "tcp", names.NETWORK_PROTOCOL: "http"}
    if route is not None:
        attributes |= {names.HTTP_METHOD: method, names.HTTP_ROUTE: route}
    else:
        attributes |= {names.MCP_METHOD: method}
        attributes |= {} if version is None else {names.MCP_VERSION: version}
    return SharedAttributes(attributes)


class ToolAttributes:
    """Attributes of a tool in one catalogue and revision. Query tools are generated, not declared."""

    __slots__ = (
        *("_shown", "argument_keys", "capture", "executing", "execution", "name", "of_request", "receiving"),
        *("redact", "shows_content", "started", "tool"),
    )

    def __init__(
        self,
        name: str,
        tool: DeclaredTool | None,
        *,
        catalogue: str,
        revision: str,
        capture: CaptureSettings,
        redact: tuple[str, ...],
    ) -> None:
        self.name = name
        self.tool = tool
        self.capture = capture
        self.redact = redact
        self.shows_content = "values" in (capture.arguments, capture.results)
        schema = {} if tool is None or capture.arguments == "none" else tool.input_schema or {}
        self._shown = frozenset(schema.get("properties", ()))
        self.argument_keys = BoundedCache(self._of_keys, most=_MOST_KEYS)
        common: dict[str, Value] = {names.TOOL: name, names.CATALOGUE: catalogue}
        more: dict[str, Value] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: name,
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
        self.of_request = SharedAttributes(common)
        self.execution = SharedAttributes({**common, **more})
        self.started: bytes | None = None
        """The part of its start records that is the same for all calls, once there is one."""
        self.receiving = names.call_span(name)
        self.executing = names.execute_span(name)

    def _of_keys(self, given: tuple[str, ...]) -> Mapping[str, Any]:
        """Return the given argument names that the tool declares; the caller may have invented others."""
        shown = [key for key in given if key in self._shown][:_MOST_KEYS]
        return SharedAttributes({names.ARGUMENT_KEYS: shown} if shown else {})
