"""Prompts and resources of servers behind us, in the words of each revision.

Definitions and texts are theirs; who vouches for them is said by us, in the same envelope that results are shown in.
Things that are hidden from a caller are answered with the bytes of things that never were.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.core.envelopes import Authority, content_envelope, neutralise, render_apart
from gateway.core.ids import new_token
from gateway.core.media_blocks import safe_mime
from gateway.errors import NotPermitted
from gateway.governance.ports import BackendFailed
from gateway.governance.principals import Principal
from gateway.governance.quarantines import Quarantined
from gateway.governance.validity import ConfigExpired
from gateway.serving.current import Client, ServedCall
from gateway.serving.having import Asked
from gateway.serving.offers import Announcement, NotOffered, Offers
from gateway.serving.relayed import foreign_meta
from gateway.serving.service import Service
from gateway.serving.turns import Turn
from gateway.serving.withholding import DefinitionChanged
from gateway.snapshot import Offer
from gateway.web.mcp.protocol import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, MODERN, ProtocolError

MOST_MESSAGES: Final = 1_000
MOST_CONTENTS: Final = 1_000
MOST_VALUES: Final = 100
_LONGEST_VALUE: Final = 1_000
_BYTES: Final = frozenset({"blob", "data"})
"""Where MCP has the bytes of media."""
_LONGEST_URI: Final = 8_192
_OLDEST: Final = "2025-03-26"

_PROMPT: Final = ("title", "description", "arguments", "icons")
_RESOURCE: Final = ("uri", "uriTemplate", "name", "title", "description", "mimeType", "size", "annotations", "icons")
_NEWER: Final[Mapping[str, frozenset[str]]] = {
    _OLDEST: frozenset({"title", "icons", "_meta"}),
    "2025-06-18": frozenset({"icons"}),
}
"""Members that a revision does not know."""


class Offering:
    """One catalogue's prompts and resources."""

    def __init__(self, service: Service, catalogue: str) -> None:
        self._service = service
        self._catalogue = catalogue

    # --- what there is ---

    @property
    def capabilities(self) -> dict[str, Any]:
        """What is declared of them, beside what is served anyway."""
        offers = self._offers
        if offers is None:
            return {}
        kinds = offers.kinds(self._catalogue)
        found: dict[str, Any] = {}
        if "prompt" in kinds:
            found["prompts"] = {"listChanged": True}
        if "resource" in kinds:
            found["resources"] = {"listChanged": True, "subscribe": True}
        if kinds and offers.completes(self._catalogue):
            found["completions"] = {}
        return found

    def prompts(self, principal: Principal, version: str) -> list[dict[str, Any]]:
        offers = self._having("prompts")
        return [
            _in_words_of(version, {"name": name, **_told(each, each.given, _PROMPT)})
            for name, each in offers.prompts(principal, self._catalogue)
        ]

    async def resources(self, principal: Principal, version: str) -> list[dict[str, Any]]:
        offers = self._offers
        if offers is None:
            return []
        found = await offers.resources(principal, self._catalogue)
        return [_in_words_of(version, _told(offer, each, _RESOURCE)) for offer, each in found]

    def templates(self, principal: Principal, version: str) -> list[dict[str, Any]]:
        offers = self._offers
        found = [] if offers is None else offers.templates(principal, self._catalogue)
        return [_in_words_of(version, _told(offer, each, _RESOURCE)) for offer, each in found]

    def has_resource(self, uri: Any) -> bool:
        """Whether a URI could be one of theirs, whoever asks: results of calls have addresses of their own."""
        return self._offers is not None and isinstance(uri, str) and not uri.startswith("artifact:")

    # --- having it ---

    async def prompt(
        self, principal: Principal, params: Mapping[str, Any], client: Client, *, into: Turn | None
    ) -> dict[str, Any]:
        offers, arguments = self._having("prompts"), params.get("arguments")
        name = params.get("name")
        if not isinstance(arguments, dict | None) or not all(
            isinstance(each, str) for each in (arguments or {}).values()
        ):
            raise ProtocolError(INVALID_PARAMS, "params.arguments is an object of strings")
        try:
            offer = offers.prompt(principal, self._catalogue, name)
            await offers.seen(principal, offer)
        except NotOffered as refused:
            await self._refused(principal, f"prompt:{name}", refused)
            raise ProtocolError(INVALID_PARAMS, "there is no such prompt") from None
        into = into or await self._service.turns.begin_reading(principal, self._catalogue)
        call = self._by(principal, f"prompt:{name}").as_call(arguments, turn=into, client=client)
        await self._decided(call, offer, ProtocolError(INVALID_PARAMS, "there is no such prompt"))
        asked = {"name": offer.remote_name, **({} if arguments is None else {"arguments": arguments})}
        result = await self._asked(offers, offer, "prompts/get", asked, principal, client)
        messages = await self._messages(offer, result)
        await self._service.having.told(call, offer, into=into)
        described = result.get("description")
        told = {"description": _line(described)} if isinstance(described, str) else {}
        return {**told, "messages": messages}

    async def read(self, principal: Principal, uri: Any, client: Client, *, into: Turn | None) -> list[dict[str, Any]]:
        """Raises `NotOffered` for everything that is not there for this caller, or not at all."""
        offers = self._offers
        if offers is None or not isinstance(uri, str) or len(uri) > _LONGEST_URI:
            raise NotOffered()
        try:
            offer = offers.owner(principal, self._catalogue, uri)
            await offers.seen(principal, offer, uri)
        except NotOffered as refused:
            await self._refused(principal, f"resource:{uri}", refused)
            raise
        into = into or await self._service.turns.begin_reading(principal, self._catalogue)
        call = self._by(principal, f"resource:{uri}").as_call({"uri": uri}, turn=into, client=client)
        await self._decided(call, offer, NotOffered())
        try:
            result = await self._asked(offers, offer, "resources/read", {"uri": uri}, principal, client)
        except ProtocolError as error:
            if error.code == INVALID_PARAMS:  # it is not there: nobody learns whether it would have been theirs
                await self._refused(principal, f"resource:{uri}", NotOffered())
                raise NotOffered() from None
            raise
        contents = await self._contents(offer, result)
        await self._service.having.told(call, offer, into=into)
        return contents

    async def completed(self, principal: Principal, params: Mapping[str, Any], client: Client) -> dict[str, Any]:
        """Possible values of an argument of a prompt, or of a template."""
        offers = self._offers
        if offers is None or not offers.completes(self._catalogue):
            raise ProtocolError(METHOD_NOT_FOUND, "there is no such method")
        ref, argument, context = params.get("ref"), params.get("argument"), params.get("context")
        if not isinstance(ref, dict) or not isinstance(argument, dict) or not isinstance(context, dict | None):
            raise ProtocolError(INVALID_PARAMS, "params.ref and params.argument are objects")
        try:
            offer, theirs = self._referred(offers, principal, ref)
            await offers.seen(principal, offer, theirs.get("uri"))
        except NotOffered as refused:
            await self._refused(principal, f"{ref.get('type')}:{ref.get('name') or ref.get('uri')}", refused)
            raise ProtocolError(INVALID_PARAMS, "there is nothing of that name to complete") from None
        call = self._by(principal, offer.object).as_call({"argument": argument}, client=client)
        await self._decided(call, offer, ProtocolError(INVALID_PARAMS, "there is nothing of that name to complete"))
        asked = {"ref": theirs, "argument": argument, **({} if context is None else {"context": context})}
        result = await self._asked(offers, offer, "completion/complete", asked, principal, client)
        return {"completion": _completion(result.get("completion"))}

    def subscribed(self, principal: Principal, uri: Any) -> Callable[[], None]:
        """Have a resource's changes announced; gives what ends that. Raises `NotOffered`."""
        self.require_resources()
        offers = self._offers
        if offers is None or not isinstance(uri, str) or len(uri) > _LONGEST_URI:
            raise NotOffered()
        return offers.remote.subscribe(offers.owner(principal, self._catalogue, uri).upstream, uri)

    def may_hear(self, principal: Principal, announcement: Announcement) -> bool:
        """Whether a change of a resource is one that the caller may know of now."""
        offers = self._offers
        try:
            owner = None if offers is None else offers.owner(principal, self._catalogue, announcement.uri)
        except NotOffered:
            return False
        return owner is not None and owner.upstream == announcement.upstream

    def require_resources(self) -> None:
        """Raises as for a method that there is not, where nothing can change that is read here."""
        self._having("resources")

    def _referred(self, offers: Offers, principal: Principal, ref: Mapping[str, Any]) -> tuple[Offer, dict[str, Any]]:
        if ref.get("type") == "ref/prompt":
            offer = offers.prompt(principal, self._catalogue, ref.get("name"))
            return offer, {"type": "ref/prompt", "name": offer.remote_name}
        uri = ref.get("uri")
        if ref.get("type") != "ref/resource" or not isinstance(uri, str):
            raise ProtocolError(INVALID_PARAMS, "params.ref is of a prompt or of a resource")
        return offers.owner(principal, self._catalogue, uri), {"type": "ref/resource", "uri": uri}

    # --- inside ---

    @property
    def _offers(self) -> Offers | None:
        return self._service.published.offers

    def _having(self, kind: str) -> Offers:
        """Raises as for a method that there is not: nothing of the kind is declared."""
        offers = self._offers
        if offers is None or kind.removesuffix("s") not in offers.kinds(self._catalogue):
            raise ProtocolError(METHOD_NOT_FOUND, "there is no such method")
        return offers

    async def _decided(self, call: ServedCall, offer: Offer, missing: Exception) -> None:
        """Have the guard decide before a server is asked. What a rule or a limit refuses is told as it is."""
        try:
            await self._service.having.decide(self._service.published, call, offer)
        except (NotPermitted, Quarantined, DefinitionChanged, ConfigExpired):  # as little there as what never was
            raise missing from None

    async def _refused(self, principal: Principal, what: str, refused: NotOffered) -> None:
        await self._service.having.refused(self._by(principal, what), refused.because)

    def _by(self, principal: Principal, what: str) -> Asked:
        return Asked(principal, self._catalogue, what, self._service.published.snapshot.revision)

    async def _asked(
        self, offers: Offers, offer: Offer, method: str, params: dict[str, Any], principal: Principal, client: Client
    ) -> dict[str, Any]:
        try:
            return await offers.remote.asked(offer.upstream, method, params, client=client, principal=principal)
        except BackendFailed as error:
            if error.word in ("invalid", "not-found"):
                raise ProtocolError(INVALID_PARAMS, _line(error.message)) from error
            raise ProtocolError(INTERNAL_ERROR, _line(error.message), {"code": error.code}) from error

    async def _messages(self, offer: Offer, result: Mapping[str, Any]) -> list[dict[str, Any]]:
        messages = result.get("messages")
        if not isinstance(messages, list) or len(messages) > MOST_MESSAGES:
            raise _unreadable()
        return [await self._message(offer, each) for each in messages]

    async def _message(self, offer: Offer, message: Any) -> dict[str, Any]:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, dict) or message.get("role") not in ("user", "assistant"):
            raise _unreadable()
        return {"role": message["role"], "content": await self._block(offer, content)}

    async def _block(self, offer: Offer, block: Mapping[str, Any]) -> dict[str, Any]:
        part = inside if isinstance(inside := block.get("resource"), dict) else block
        told = {**block, "_meta": {**foreign_meta(block.get("_meta")), **_vouched(offer, part)}}
        if block.get("type") == "text":
            if not isinstance(block.get("text"), str):
                raise _unreadable()
            told["text"] = await self._shown(offer, block["text"])
        elif part is inside and isinstance(inside.get("text"), str):
            told["resource"] = {**inside, "text": await self._shown(offer, inside["text"])}
        return told

    async def _contents(self, offer: Offer, result: Mapping[str, Any]) -> list[dict[str, Any]]:
        contents = result.get("contents")
        if not isinstance(contents, list) or len(contents) > MOST_CONTENTS:
            raise _unreadable()
        return [await self._content(offer, each) for each in contents]

    async def _content(self, offer: Offer, content: Any) -> dict[str, Any]:
        if not isinstance(content, dict) or not isinstance(content.get("uri"), str):
            raise _unreadable()
        told = {**content, "_meta": {**foreign_meta(content.get("_meta")), **_vouched(offer, content)}}
        if isinstance(mime := content.get("mimeType"), str):
            told["mimeType"] = safe_mime(mime)
        if isinstance(content.get("text"), str):
            told["text"] = await self._shown(offer, content["text"])
        elif not isinstance(content.get("blob"), str):
            raise _unreadable()
        return told

    async def _shown(self, offer: Offer, text: str) -> str:
        """A text of theirs as models are shown it: inside an envelope that only we can have written."""
        catalogue = self._service.published.snapshot.catalogues[self._catalogue]
        if catalogue.render != "envelope":
            return text
        authority: Authority = "trusted" if offer.trust.trusted else "untrusted"
        attributes = {"kind": offer.kind, "tool": offer.name}
        nonce = new_token(16)
        return await render_apart(
            lambda body: content_envelope(authority, body, nonce=nonce, attributes=attributes).render(), text
        )


def _told(offer: Offer, given: Mapping[str, Any], members: Sequence[str]) -> dict[str, Any]:
    """A definition of theirs: what they say, and who vouches for it."""
    told = {key: _plain(given[key]) for key in members if given.get(key) is not None}
    return {**told, "_meta": {**foreign_meta(_plain(given.get("_meta"))), "tier": offer.trust.tier.name}}


def _vouched(offer: Offer, part: Mapping[str, Any]) -> dict[str, Any]:
    """Who vouches for a part. Nobody does for media: only text that came without bytes can be trusted."""
    is_text = isinstance(part.get("text"), str) and _BYTES.isdisjoint(part)
    is_trusted = offer.trust.trusted and is_text
    hazard = "inert" if is_trusted else "extractable-instructions"
    return {"tier": offer.trust.tier.name, "trusted": is_trusted, "hazard": hazard}


def _in_words_of(version: str, told: dict[str, Any]) -> dict[str, Any]:
    unknown = _NEWER.get(version, frozenset()) if version != MODERN else frozenset()
    return {key: value for key, value in told.items() if key not in unknown} if unknown else told


def _completion(given: Any) -> dict[str, Any]:
    values = given.get("values") if isinstance(given, dict) else None
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise _unreadable()
    told: dict[str, Any] = {"values": [neutralise(each[:_LONGEST_VALUE]) for each in values[:MOST_VALUES]]}
    if type(total := given.get("total")) is int:
        told["total"] = total
    if isinstance(more := given.get("hasMore"), bool):
        told["hasMore"] = more or len(values) > MOST_VALUES
    return told


def _line(text: str) -> str:
    return neutralise("".join(each if each.isprintable() else " " for each in text[:2048]))


def _unreadable() -> ProtocolError:
    return ProtocolError(INTERNAL_ERROR, "the upstream server answered something that cannot be passed on")


def _plain(value: Any) -> Any:
    """Snapshots are frozen; the serialiser takes plain containers."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
