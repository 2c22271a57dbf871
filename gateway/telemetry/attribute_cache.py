"""Attributes of spans and logs that many calls share, encoded once and cached."""

from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol

from gateway.registries import DeclaredTool
from gateway.telemetry import names
from gateway.telemetry.export.wire_format import (
    OF_LOG,
    OF_SPAN,
    Attributes,
    Value,
    event_body,
    event_name,
    head,
    of_log,
    of_span,
    span_event,
    span_name,
)
from gateway.telemetry.metric_instruments import BoundedCache
from gateway.telemetry.settings import CaptureSettings

_MOST_KEYS: Final = 32
_LONGEST_ID: Final = 128


class ContentHashes(Protocol):
    """Keyed hashes, the same as in the decision log. They stand for names of principals."""

    def name(self, text: str) -> str: ...

    def arguments(self, fingerprint: bytes) -> str: ...

    def result(self, content: bytes) -> str: ...


class CommonAttributes:
    """Encoded attributes that do not depend on the tool."""

    def __init__(self, attributes: Attributes, hashes: ContentHashes) -> None:
        self._attributes = attributes
        self._hashes = hashes
        self.limit = attributes.limit
        self.longest_id = min(_LONGEST_ID, attributes.limit)
        """Maximum characters of a request id, which the caller chooses."""
        self.argument_bytes = self._numbers(names.ARGUMENT_BYTES)
        self.argument_digest = _before_texts(names.ARGUMENT_DIGEST)
        self.artifact_id = _before_texts(names.ARTIFACT_ID)
        self.before_ids_of_log = BoundedCache(partial(_before_ids, OF_LOG))
        self.before_ids_of_span = BoundedCache(partial(_before_ids, OF_SPAN))
        """Prefixes of the ids of a call, by the lengths of its own id and of its turn's."""
        self.request_id = _before_texts(names.REQUEST_ID)
        self.result_bytes = self._numbers(names.RESULT_BYTES)
        self.result_digest = _before_texts(names.RESULT_DIGEST)
        self.spooled = {value: self.all({names.RESULT_SPOOLED: value}) for value in (True, False)}
        self.decisions = BoundedCache(self._of_decision)
        """By decision and reason."""
        self.peers = BoundedCache(self._of_peer)
        self.requests = BoundedCache(self._of_request)
        """By method, version of MCP and route of REST."""
        self.principals = BoundedCache(self._of_principal)
        """By subject and tenant."""
        self.standings = BoundedCache(self._of_standing)
        """By subject, tenant, definition and deciding rules of a call."""

    def all(self, told: Mapping[str, Value]) -> bytes:
        """Encode attributes of a span."""
        return of_span(self._attributes.all(told))

    def event(self, name: str, at: int, told: Mapping[str, Value]) -> bytes:
        """Encode an event of a span."""
        return span_event(name, at, self._attributes.all(told), self.limit)

    def _numbers(self, key: str) -> BoundedCache[int, bytes]:
        return BoundedCache(lambda number: self.all({key: number}))

    def _of_standing(self, of: tuple[str, str | None, str | None, tuple[str, ...]]) -> bytes:
        subject, tenant, definition, rules = of
        of_definition = self.all({names.DEFINITION: definition}) if definition else b""
        of_rules = self.all({names.POLICY_RULE: rules}) if rules else b""
        return self.principals[subject, tenant] + of_definition + of_rules

    def _of_decision(self, decided: tuple[str, str]) -> bytes:
        return self.all({names.DECISION: decided[0], names.DECISION_REASON: decided[1]})

    def _of_peer(self, peer: tuple[str, int]) -> bytes:
        return self.all({names.CLIENT_ADDRESS: peer[0], names.CLIENT_PORT: peer[1]})

    def _of_principal(self, named: tuple[str, str | None]) -> bytes:
        subject, tenant = named
        of_tenant: dict[str, Value] = {} if tenant is None else {names.TENANT: self._hashes.name(tenant)}
        return self.all({names.PRINCIPAL: self._hashes.name(subject), **of_tenant})

    def _of_request(self, kind: tuple[str, str | None, str | None]) -> bytes:
        method, version, route = kind
        told: dict[str, Value] = {names.NETWORK_TRANSPORT: "tcp", names.NETWORK_PROTOCOL: "http"}
        if route is not None:
            told |= {names.HTTP_METHOD: method, names.HTTP_ROUTE: route}
        else:
            told |= {names.MCP_METHOD: method}
            told |= {} if version is None else {names.MCP_VERSION: version}
        return self.all(told)


def _before_texts(key: str) -> BoundedCache[int, bytes]:
    """Return the encoded prefixes of a text attribute, by length of the text; an empty text is omitted."""
    return BoundedCache(lambda size: head(key, size, OF_SPAN) if size else b"")


def _before_ids(tag: bytes, sizes: tuple[int, int]) -> tuple[bytes, bytes, bytes]:
    own, turn = sizes
    of_turn = head(names.TURN_ID, turn, tag) if turn else b""
    return head(names.CALL_ID, own, tag), head(names.TOOL_CALL_ID, own, tag), of_turn


class ToolAttributes:
    """Encoded attributes of a tool in one catalogue and revision. Query tools are generated, not declared."""

    __slots__ = (
        *("_attributes", "_shown", "argument_keys", "capture", "ended_unseen", "executing", "of_request", "receiving"),
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
        attributes: Attributes,
    ) -> None:
        self.tool = tool
        self.capture = capture
        self.redact = redact
        self.shows_content = "values" in (capture.arguments, capture.results)
        self._attributes = attributes
        schema = {} if tool is None or capture.arguments == "none" else tool.input_schema or {}
        self._shown = frozenset(schema.get("properties", ()))
        self.argument_keys = BoundedCache(self._of_keys, most=_MOST_KEYS)
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
        of_start = of_log((*shared, *own))
        self.of_request = of_span(shared)
        self.receiving = span_name(names.call_span(name), attributes.limit)
        self.executing = span_name(names.execute_span(name), attributes.limit) + of_span((*shared, *own))
        body = event_body(f"{name} was called", attributes.limit)
        self.started = event_name(names.CALL_STARTED) + body + of_start
        self.ended_unseen = event_name(names.CALL_UNKNOWN) + of_start

    def _of_keys(self, given: tuple[str, ...]) -> bytes:
        """Encode the given argument names that the tool declares; the caller may have invented others."""
        shown = [key for key in given if key in self._shown][:_MOST_KEYS]
        return of_span([self._attributes.encode(names.ARGUMENT_KEYS, shown)]) if shown else b""
