"""Renderer: what a model reads of a call's result, chosen by the kind of result and by trust.

Trust is decided by the tool's flag alone, never by names or providers, and only downwards
afterwards: a tool that is gone, an error and a handle are always untrusted.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.core.artifacts import SpooledArtifact, pieces_of
from gateway.core.calls import ToolCall
from gateway.core.envelopes import Authority, handle_text, nonce_for, render_apart, result_envelope
from gateway.core.media import Media
from gateway.core.media_blocks import FALLBACK_KEYS, Block, UnsupportedPolicy, openai_blocks, text_block
from gateway.core.tokens import Tokenizable
from gateway.core.tool_registry import ToolRegistry


class Showing(Protocol):
    """What showing a result needs to know of its turn."""

    @property
    def tools(self) -> ToolRegistry: ...

    @property
    def turn_secret(self) -> bytes: ...

    def emit_warning(self, kind: str, message: str, error: BaseException | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Renderer:
    """How results are shown. `handle_encoding` adds a token estimate to handles."""

    unsupported_media: UnsupportedPolicy = "throw"
    fallback_keys: Sequence[str] = FALLBACK_KEYS
    handle_encoding: str | None = None

    async def tool_result(self, ctx: Showing, call: ToolCall) -> list[Block]:
        """The blocks of one result: text in its envelope, or media blocks behind their markers."""
        if media := media_of(call.results):
            nonce = nonce_for(ctx.turn_secret, call.checksum, call.id)
            return [block for each in media for block in await self.media(each, nonce)]
        return [text_block(await self.text(ctx, call))]

    async def media(self, media: Media, nonce: str) -> list[Block]:
        return await openai_blocks(
            media, nonce=nonce, unsupported=self.unsupported_media, fallback_keys=self.fallback_keys
        )

    async def text(self, ctx: Showing, call: ToolCall) -> str:
        """The text of a result that is no media, in its envelope."""
        authority = authority_of(ctx, call)
        results: Any = call.results
        if isinstance(results, Tokenizable):
            if not call.inline:
                ctx.emit_warning("inline-ignored", f"the text of {call.id!r} has no artifact and is shown inline")
            body = results.render(ctx)
        elif call.inline:
            body = await whole_texts(results)
        else:
            body = await handle_texts(call.id, results, encoding=self.handle_encoding)
            return result_envelope(call, ctx.turn_secret, "untrusted", body, "artifact-handle")
        return await shown_whole(ctx, call, authority, body)


async def shown_whole(ctx: Showing, call: ToolCall, authority: Authority, body: str) -> str:
    """A text that nothing was left out of, in its envelope."""
    kind = "trusted-tool-result" if authority == "trusted" else "tool-result"
    return await render_apart(lambda text: result_envelope(call, ctx.turn_secret, authority, text, kind), body)


def authority_of(ctx: Showing, call: ToolCall) -> Authority:
    """Trusted only if the tool is, still is registered, and was at call time; errors and media never are."""
    tool = ctx.tools.get(call.tool)
    if tool is None:
        ctx.emit_warning("tool-not-registered", f"the tool {call.tool!r} is gone; its result is shown as untrusted")
        return "untrusted"
    is_trusted = tool.trusted and call.trusted is not False and not call.is_error
    return "trusted" if is_trusted and not media_of(call.results) else "untrusted"


async def whole_texts(results: Any) -> str:
    """The bodies of one artifact or several, with a blank line between them."""
    return "\n\n".join([str(await _whole_text(each)) for each in (results if isinstance(results, list) else [results])])


async def handle_texts(call_id: str, results: Any, *, encoding: str | None = None) -> str:
    """What stands for one artifact or several whose bodies were left out, each with the id it is queried by."""
    return "\n\n".join([await handle_text(id, each, encoding=encoding) for id, each in pieces_of(call_id, results)])


def _whole_text(artifact: Any) -> Awaitable[Any]:
    """The body; an artifact judged by its shape alone need not offer more than its lines."""
    whole: Awaitable[Any] = artifact.as_string() if hasattr(artifact, "as_string") else _all_lines(artifact)
    return whole


async def _all_lines(artifact: Any) -> str:
    return "\n".join(await artifact.cat())


def media_of(results: Any) -> list[Media]:
    """The media that a call yielded; none if that is text or an artifact."""
    if isinstance(results, SpooledArtifact | Tokenizable):
        return []
    items = results if isinstance(results, list) else [results]
    return items if all(isinstance(item, Media) for item in items) else []
