"""The shapes that LLM providers and MCP expect: media as content blocks, and the definitions of tools.

Media become native blocks where the provider supports them, else text. No other module of `gateway.model` reads media
bytes. The definitions for four providers all derive from `Tool.describe()`, so they always match what is enforced.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

from gateway.errors import UnsupportedMediaModality
from gateway.model.envelopes.trust_envelope import content_envelope
from gateway.model.media import TIERS, Media, TrustTier, lower_trust_tier
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_registry import ToolRegistry

UnsupportedPolicy = Literal["throw", "fallback-stash", "synthetic-description"]
ContentBlock = dict[str, Any]

FALLBACK_KEYS: Final = ("text:transcript", "text:caption", "text:description")
_AUDIO_FORMATS: Final = {
    "audio/wav": "wav",
    "audio/wave": "wav",
    "audio/x-wav": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
_MODALITIES: Final = {
    "inert": "inert",
    "extractable-instructions": "extractable",
    "opaque-perceptual": "opaque",
}
_MIME: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+")
_UNSAFE_IN_NAME: Final = re.compile(r"[<>\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MAX_NAME: Final = 256


async def openai_blocks(
    media: Media,
    *,
    nonce: str,
    unsupported: UnsupportedPolicy = "throw",
    fallback_keys: Sequence[str] = FALLBACK_KEYS,
) -> list[ContentBlock]:
    """Return a marker line that names the asset, then its block in the shape of OpenAI's chat messages."""
    marker = text_block(f"[media id: {sanitize_file_name(media.id)} | {sanitize_file_name(media.filename)}]")
    native = await _openai_native(media)
    if native is not None:
        return [marker, native]
    return [marker, text_block(await _substitute(media, nonce, unsupported, fallback_keys))]


async def mcp_block(media: Media) -> ContentBlock:
    """Return image and audio as MCP content, other media as an embedded resource."""
    meta = {"tier": media.trust_tier, "hazard": media.modality_hazard}
    mime_type = sanitize_mime_type(media.mime_type)
    if media.kind in ("image", "audio"):
        return {"type": media.kind, "data": await media.as_base64(), "mimeType": mime_type, "_meta": meta}
    resource = {"uri": f"media://{media.id}", "mimeType": mime_type, "blob": await media.as_base64()}
    return {"type": "resource", "resource": resource, "_meta": meta}


def text_block(text: str) -> ContentBlock:
    return {"type": "text", "text": text}


def sanitize_mime_type(mime_type: str) -> str:
    """Return a bare `type/subtype`: parameters could forge a second `;base64,` or a header."""
    return mime_type if _MIME.fullmatch(mime_type) else "application/octet-stream"


def sanitize_file_name(name: str) -> str:
    cleaned = _UNSAFE_IN_NAME.sub("", name)
    return cleaned if len(cleaned) <= _MAX_NAME else f"{cleaned[:_MAX_NAME]}…"


def format_size(size: int | None) -> str:
    if size is None:
        return "unknown size"
    amount = float(size)
    for unit in ("B", "KB", "MB"):
        if amount < 1024:
            return f"{amount:.1f} {unit}" if unit != "B" else f"{size} B"
        amount /= 1024
    return f"{amount:.1f} GB"


async def _openai_native(media: Media) -> ContentBlock | None:
    mime_type = sanitize_mime_type(media.mime_type)
    if media.kind == "image":
        return {"type": "image_url", "image_url": {"url": await _data_uri(media, mime_type)}}
    if media.kind == "audio" and mime_type.lower() in _AUDIO_FORMATS:
        audio = {"data": await media.as_base64(), "format": _AUDIO_FORMATS[mime_type.lower()]}
        return {"type": "input_audio", "input_audio": audio}
    if media.kind == "document":
        file = {"filename": sanitize_file_name(media.filename), "file_data": await _data_uri(media, mime_type)}
        return {"type": "file", "file": file}
    return None


async def _data_uri(media: Media, mime_type: str) -> str:
    return f"data:{mime_type};base64,{await media.as_base64()}"


async def _substitute(media: Media, nonce: str, policy: UnsupportedPolicy, keys: Sequence[str]) -> str:
    if policy == "throw":
        raise UnsupportedMediaModality(
            f"{media.kind} of type {sanitize_mime_type(media.mime_type)!r} cannot be shown to this provider",
            help="choose the policy 'fallback-stash' or 'synthetic-description'",
        )
    if policy == "fallback-stash":
        for key in keys:
            entry = media.stash.get(key)
            if isinstance(entry, dict) and isinstance(entry.get("value"), str):
                return _fallback(media, entry["value"], _effective_tier(media, entry.get("trust_tier")), nonce)
    size = format_size(await media.byte_length())
    return f"[media: {sanitize_file_name(media.filename)}, {sanitize_mime_type(media.mime_type)}, {size}]"


def _effective_tier(media: Media, claimed: Any) -> TrustTier:
    """Return the less trusted tier of asset and entry; middleware may have added an entry with an unknown tier."""
    return lower_trust_tier(claimed if claimed in TIERS else "third-party-private", media.trust_tier)


def _fallback(media: Media, text: str, tier: TrustTier, nonce: str) -> str:
    attributes = {"kind": "media-fallback", "modality": _MODALITIES[media.modality_hazard]}
    authority: Literal["trusted", "untrusted"] = "trusted" if tier == "first-party" else "untrusted"
    return content_envelope(authority, text, nonce=nonce, attributes=attributes).render()


ProviderName = Literal["openai", "anthropic", "gemini", "mcp"]


def definition(tool: Tool, provider: ProviderName) -> dict[str, Any]:
    """Return the definition of a tool for one provider. Raises `ValueError` for an unknown provider."""
    return to_provider_definition(tool.describe(), provider)


def to_provider_definition(described: dict[str, Any], provider: ProviderName) -> dict[str, Any]:
    """Return the definition for a provider from a description: `name`, `description` and `input_schema`.

    `title` and `annotations` are sent to MCP clients; other providers have no fields for them.
    """
    if provider not in _SHAPES:
        raise ValueError(f"the provider {provider!r} is not one of {', '.join(_SHAPES)}")
    return _SHAPES[provider](described)


def definitions(tools: ToolRegistry | Iterable[Tool], provider: ProviderName) -> list[dict[str, Any]]:
    """Return one definition per tool; of a registry, only the visible tools."""
    listed = tools.visible() if isinstance(tools, ToolRegistry) else tools
    return [definition(tool, provider) for tool in listed]


def _parameters(described: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {}, **described["input_schema"]}


def _openai(described: dict[str, Any]) -> dict[str, Any]:
    function = {
        "name": described["name"],
        "description": described["description"],
        "parameters": _parameters(described),
    }
    return {"type": "function", "function": function}


def _anthropic(described: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": described["name"],
        "description": described["description"],
        "input_schema": _parameters(described),
    }


def _gemini(described: dict[str, Any]) -> dict[str, Any]:
    # `parameters` accepts a subset of OpenAPI only; this field accepts JSON Schema.
    return {
        "name": described["name"],
        "description": described["description"],
        "parametersJsonSchema": _parameters(described),
    }


def _mcp(described: dict[str, Any]) -> dict[str, Any]:
    found = {
        "name": described["name"],
        "description": described["description"],
        "inputSchema": _parameters(described),
    }
    return found | {key: described[key] for key in ("title", "annotations") if key in described}


_SHAPES: Final[dict[ProviderName, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "mcp": _mcp,
}
