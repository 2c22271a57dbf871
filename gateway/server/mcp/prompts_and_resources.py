"""Prompts and resources of upstream servers, in the form of each protocol revision.

Definitions and texts come from the server; the gateway adds tier and trust, in the same envelope as for results. The
response for something hidden from a caller has the same bytes as that for something that does not exist.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.engine import (
    Call,
    ChangeNotification,
    DefinitionChanged,
    ResourceCatalogue,
    ResourceRequest,
    Service,
    Turn,
    UnknownResource,
)
from gateway.errors import NotPermitted
from gateway.mcp import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    STATELESS_VERSION,
    ProtocolError,
    filter_foreign_meta,
)
from gateway.model import (
    Authority,
    BackendError,
    CallerChannel,
    Principal,
    content_envelope,
    escape_tags,
    new_token,
    render_off_loop,
    sanitize_mime_type,
)
from gateway.policy import CallQuarantined, ConfigExpired
from gateway.registries import DeclaredDefinition

MAX_MESSAGES: Final = 1_000
MAX_CONTENTS: Final = 1_000
MAX_VALUES: Final = 100
_MAX_VALUE: Final = 1_000
_BYTES: Final = frozenset({"blob", "data"})
"""Members in which MCP has the bytes of media."""
_MAX_URI: Final = 8_192
_OLDEST: Final = "2025-03-26"

_PROMPT: Final = ("title", "description", "arguments", "icons")
_RESOURCE: Final = ("uri", "uriTemplate", "name", "title", "description", "mimeType", "size", "annotations", "icons")
_NEWER: Final[Mapping[str, frozenset[str]]] = {
    _OLDEST: frozenset({"title", "icons", "_meta"}),
    "2025-06-18": frozenset({"icons"}),
}
"""Members that a protocol revision does not have."""


class PromptAndResourceMethods:
    """One catalogue's prompts and resources."""

    def __init__(self, service: Service, catalogue: str) -> None:
        self._service = service
        self._catalogue = catalogue

    # --- lists ---

    @property
    def capabilities(self) -> dict[str, Any]:
        """The capabilities to declare for prompts and resources."""
        offers = self._offers
        if offers is None:
            return {}
        kinds = offers.kinds(self._catalogue)
        found: dict[str, Any] = {}
        if "prompt" in kinds:
            found["prompts"] = {"listChanged": True}
        if "resource" in kinds:
            found["resources"] = {"listChanged": True, "subscribe": True}
        if kinds and offers.supports_completion(self._catalogue):
            found["completions"] = {}
        return found

    def prompts(self, principal: Principal, version: str) -> list[dict[str, Any]]:
        offers = self._require_kind("prompts")
        return [
            _for_version(version, {"name": name, **_describe(each, each.given, _PROMPT)})
            for name, each in offers.prompts(principal, self._catalogue)
        ]

    async def resources(self, principal: Principal, version: str) -> list[dict[str, Any]]:
        offers = self._offers
        if offers is None:
            return []
        found = await offers.resources(principal, self._catalogue)
        return [_for_version(version, _describe(offer, each, _RESOURCE)) for offer, each in found]

    def templates(self, principal: Principal, version: str) -> list[dict[str, Any]]:
        offers = self._offers
        found = [] if offers is None else offers.templates(principal, self._catalogue)
        return [_for_version(version, _describe(offer, each, _RESOURCE)) for offer, each in found]

    def has_resource(self, uri: Any) -> bool:
        """Whether a URI may belong to an upstream server, for any caller: URIs of call results start with artifact:."""
        return self._offers is not None and isinstance(uri, str) and not uri.startswith("artifact:")

    # --- reads ---

    async def prompt(
        self, principal: Principal, params: Mapping[str, Any], client: CallerChannel, *, into: Turn | None
    ) -> dict[str, Any]:
        offers, arguments = self._require_kind("prompts"), params.get("arguments")
        name = params.get("name")
        if not isinstance(arguments, dict | None) or not all(
            isinstance(each, str) for each in (arguments or {}).values()
        ):
            raise ProtocolError(INVALID_PARAMS, "params.arguments must be an object of strings")
        try:
            offer = offers.find_prompt(principal, self._catalogue, name)
            await offers.wait_for_comparison(principal, offer)
        except UnknownResource as refused:
            await self._record_refusal(principal, f"prompt:{name}", refused)
            raise ProtocolError(INVALID_PARAMS, "there is no such prompt") from None
        into = into or await self._service.turns.begin_reading(principal, self._catalogue)
        call = self._request_by(principal, f"prompt:{name}").to_call(arguments, turn=into, client=client)
        await self._decide(call, offer, ProtocolError(INVALID_PARAMS, "there is no such prompt"))
        request = {"name": offer.remote_name, **({} if arguments is None else {"arguments": arguments})}
        result = await self._fetch(offers, offer, "prompts/get", request, principal, client)
        messages = await self._messages(offer, result)
        await self._service.resource_audit.record_read(call, offer, into=into)
        text = result.get("description")
        description = {"description": _line(text)} if isinstance(text, str) else {}
        return {**description, "messages": messages}

    async def read(
        self, principal: Principal, uri: Any, client: CallerChannel, *, into: Turn | None
    ) -> list[dict[str, Any]]:
        """Return the contents. Raises `UnknownResource` if it does not exist or the caller may not read it."""
        offers = self._offers
        if offers is None or not isinstance(uri, str) or len(uri) > _MAX_URI:
            raise UnknownResource()
        try:
            offer = offers.find_group(principal, self._catalogue, uri)
            await offers.wait_for_comparison(principal, offer, uri)
        except UnknownResource as refused:
            await self._record_refusal(principal, f"resource:{uri}", refused)
            raise
        into = into or await self._service.turns.begin_reading(principal, self._catalogue)
        call = self._request_by(principal, f"resource:{uri}").to_call({"uri": uri}, turn=into, client=client)
        await self._decide(call, offer, UnknownResource())
        try:
            result = await self._fetch(offers, offer, "resources/read", {"uri": uri}, principal, client)
        except ProtocolError as error:
            if error.code == INVALID_PARAMS:  # it does not exist: do not reveal whether the caller might read it
                await self._record_refusal(principal, f"resource:{uri}", UnknownResource())
                raise UnknownResource() from None
            raise
        contents = await self._contents(offer, result)
        await self._service.resource_audit.record_read(call, offer, into=into)
        return contents

    async def complete(self, principal: Principal, params: Mapping[str, Any], client: CallerChannel) -> dict[str, Any]:
        """Return possible values of an argument of a prompt or of a template."""
        offers = self._offers
        if offers is None or not offers.supports_completion(self._catalogue):
            raise ProtocolError(METHOD_NOT_FOUND, "there is no such method")
        ref, argument, context = params.get("ref"), params.get("argument"), params.get("context")
        if not isinstance(ref, dict) or not isinstance(argument, dict) or not isinstance(context, dict | None):
            raise ProtocolError(INVALID_PARAMS, "params.ref and params.argument must be objects")
        try:
            offer, theirs = self._resolve_ref(offers, principal, ref)
            await offers.wait_for_comparison(principal, offer, theirs.get("uri"))
        except UnknownResource as refused:
            await self._record_refusal(principal, f"{ref.get('type')}:{ref.get('name') or ref.get('uri')}", refused)
            raise ProtocolError(INVALID_PARAMS, "there is nothing of that name to complete") from None
        call = self._request_by(principal, offer.object).to_call({"argument": argument}, client=client)
        await self._decide(call, offer, ProtocolError(INVALID_PARAMS, "there is nothing of that name to complete"))
        request = {"ref": theirs, "argument": argument, **({} if context is None else {"context": context})}
        result = await self._fetch(offers, offer, "completion/complete", request, principal, client)
        return {"completion": _completion(result.get("completion"))}

    def subscribe(self, principal: Principal, uri: Any) -> Callable[[], None]:
        """Subscribe to changes of a resource; return the function that unsubscribes. Raises `UnknownResource`."""
        self.require_resources()
        offers = self._offers
        if offers is None or not isinstance(uri, str) or len(uri) > _MAX_URI:
            raise UnknownResource()
        return offers.remote.subscribe(offers.find_group(principal, self._catalogue, uri).upstream, uri)

    def may_notify(self, principal: Principal, announcement: ChangeNotification) -> bool:
        """Whether the caller may know of a change of a resource now."""
        offers = self._offers
        try:
            owner = None if offers is None else offers.find_group(principal, self._catalogue, announcement.uri)
        except UnknownResource:
            return False
        return owner is not None and owner.upstream == announcement.upstream

    def require_resources(self) -> None:
        """Raise `ProtocolError` as for an unknown method if the catalogue has no resources."""
        self._require_kind("resources")

    def _resolve_ref(
        self, offers: ResourceCatalogue, principal: Principal, ref: Mapping[str, Any]
    ) -> tuple[DeclaredDefinition, dict[str, Any]]:
        if ref.get("type") == "ref/prompt":
            offer = offers.find_prompt(principal, self._catalogue, ref.get("name"))
            return offer, {"type": "ref/prompt", "name": offer.remote_name}
        uri = ref.get("uri")
        if ref.get("type") != "ref/resource" or not isinstance(uri, str):
            raise ProtocolError(INVALID_PARAMS, "params.ref must refer to a prompt or a resource")
        return offers.find_group(principal, self._catalogue, uri), {"type": "ref/resource", "uri": uri}

    @property
    def _offers(self) -> ResourceCatalogue | None:
        return self._service.published.offers

    def _require_kind(self, kind: str) -> ResourceCatalogue:
        """Return the catalogue. Raises `ProtocolError` as for an unknown method if it declares nothing of the kind."""
        offers = self._offers
        if offers is None or kind.removesuffix("s") not in offers.kinds(self._catalogue):
            raise ProtocolError(METHOD_NOT_FOUND, "there is no such method")
        return offers

    async def _decide(self, call: Call, offer: DeclaredDefinition, missing: Exception) -> None:
        """Have the guard decide first. Raises `missing` if the caller may not know of it, else the guard's refusal."""
        try:
            await self._service.resource_audit.decide(self._service.published, call, offer)
        except (NotPermitted, CallQuarantined, DefinitionChanged, ConfigExpired):  # same bytes as for a missing one
            raise missing from None

    async def _record_refusal(self, principal: Principal, what: str, refused: UnknownResource) -> None:
        await self._service.resource_audit.record_refusal(self._request_by(principal, what), refused.because)

    def _request_by(self, principal: Principal, what: str) -> ResourceRequest:
        return ResourceRequest(principal, self._catalogue, what, self._service.published.snapshot.revision)

    async def _fetch(
        self,
        offers: ResourceCatalogue,
        offer: DeclaredDefinition,
        method: str,
        params: dict[str, Any],
        principal: Principal,
        client: CallerChannel,
    ) -> dict[str, Any]:
        try:
            return await offers.remote.fetch(offer.upstream, method, params, client=client, principal=principal)
        except BackendError as error:
            if error.word in ("invalid", "not-found"):
                raise ProtocolError(INVALID_PARAMS, _line(error.message)) from error
            raise ProtocolError(INTERNAL_ERROR, _line(error.message), {"code": error.code}) from error

    async def _messages(self, offer: DeclaredDefinition, result: Mapping[str, Any]) -> list[dict[str, Any]]:
        messages = result.get("messages")
        if not isinstance(messages, list) or len(messages) > MAX_MESSAGES:
            raise _invalid_response()
        return [await self._message(offer, each) for each in messages]

    async def _message(self, offer: DeclaredDefinition, message: Any) -> dict[str, Any]:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, dict) or message.get("role") not in ("user", "assistant"):
            raise _invalid_response()
        return {"role": message["role"], "content": await self._block(offer, content)}

    async def _block(self, offer: DeclaredDefinition, block: Mapping[str, Any]) -> dict[str, Any]:
        part = inside if isinstance(inside := block.get("resource"), dict) else block
        found = {**block, "_meta": {**filter_foreign_meta(block.get("_meta")), **_trust_meta(offer, part)}}
        if block.get("type") == "text":
            if not isinstance(block.get("text"), str):
                raise _invalid_response()
            found["text"] = await self._render(offer, block["text"])
        elif part is inside and isinstance(inside.get("text"), str):
            found["resource"] = {**inside, "text": await self._render(offer, inside["text"])}
        return found

    async def _contents(self, offer: DeclaredDefinition, result: Mapping[str, Any]) -> list[dict[str, Any]]:
        contents = result.get("contents")
        if not isinstance(contents, list) or len(contents) > MAX_CONTENTS:
            raise _invalid_response()
        return [await self._content(offer, each) for each in contents]

    async def _content(self, offer: DeclaredDefinition, content: Any) -> dict[str, Any]:
        if not isinstance(content, dict) or not isinstance(content.get("uri"), str):
            raise _invalid_response()
        found = {**content, "_meta": {**filter_foreign_meta(content.get("_meta")), **_trust_meta(offer, content)}}
        if isinstance(mime := content.get("mimeType"), str):
            found["mimeType"] = sanitize_mime_type(mime)
        if isinstance(content.get("text"), str):
            found["text"] = await self._render(offer, content["text"])
        elif not isinstance(content.get("blob"), str):
            raise _invalid_response()
        return found

    async def _render(self, offer: DeclaredDefinition, text: str) -> str:
        """Return a text of a server as models see it: inside an envelope that only the gateway can write."""
        catalogue = self._service.published.snapshot.catalogues[self._catalogue]
        if catalogue.render != "envelope":
            return text
        authority: Authority = "trusted" if offer.trust.trusted else "untrusted"
        attributes = {"kind": offer.kind, "tool": offer.name}
        nonce = new_token(16)
        return await render_off_loop(
            lambda body: content_envelope(authority, body, nonce=nonce, attributes=attributes).render(), text
        )


def _describe(offer: DeclaredDefinition, given: Mapping[str, Any], members: Sequence[str]) -> dict[str, Any]:
    """Return a definition of a server with its tier."""
    found = {key: _plain(given[key]) for key in members if given.get(key) is not None}
    return {**found, "_meta": {**filter_foreign_meta(_plain(given.get("_meta"))), "tier": offer.trust.tier.name}}


def _trust_meta(offer: DeclaredDefinition, part: Mapping[str, Any]) -> dict[str, Any]:
    """Return tier, trust and hazard of a part. Media are never trusted: only text without bytes can be."""
    is_text = isinstance(part.get("text"), str) and _BYTES.isdisjoint(part)
    is_trusted = offer.trust.trusted and is_text
    hazard = "inert" if is_trusted else "extractable-instructions"
    return {"tier": offer.trust.tier.name, "trusted": is_trusted, "hazard": hazard}


def _for_version(version: str, found: dict[str, Any]) -> dict[str, Any]:
    unknown = _NEWER.get(version, frozenset()) if version != STATELESS_VERSION else frozenset()
    return {key: value for key, value in found.items() if key not in unknown} if unknown else found


def _completion(given: Any) -> dict[str, Any]:
    values = given.get("values") if isinstance(given, dict) else None
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise _invalid_response()
    found: dict[str, Any] = {"values": [escape_tags(each[:_MAX_VALUE]) for each in values[:MAX_VALUES]]}
    if type(total := given.get("total")) is int:
        found["total"] = total
    if isinstance(more := given.get("hasMore"), bool):
        found["hasMore"] = more or len(values) > MAX_VALUES
    return found


def _line(text: str) -> str:
    return escape_tags("".join(each if each.isprintable() else " " for each in text[:2048]))


def _invalid_response() -> ProtocolError:
    return ProtocolError(INTERNAL_ERROR, "the upstream server sent an invalid response")


def _plain(value: Any) -> Any:
    """Return plain containers, which the serialiser needs: snapshots are frozen."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
