"""Media for a model: native blocks where a provider has them, text where it does not.

This is the only place of the core where media bytes are read.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

from gateway.core.envelopes import content_envelope
from gateway.core.media import TIERS, Media, TrustTier, less_trusted
from gateway.errors import UnsupportedMediaModality

UnsupportedPolicy = Literal["throw", "fallback-stash", "synthetic-description"]
Block = dict[str, Any]

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
) -> list[Block]:
    """A marker line that names the asset, then its block in the shape of OpenAI's chat messages."""
    marker = text_block(f"[media id: {safe_name(media.id)} | {safe_name(media.filename)}]")
    native = await _openai_native(media)
    if native is not None:
        return [marker, native]
    return [marker, text_block(await _substitute(media, nonce, unsupported, fallback_keys))]


async def mcp_block(media: Media) -> Block:
    """Image and audio as MCP content, everything else as an embedded resource."""
    meta = {"tier": media.trust_tier, "hazard": media.modality_hazard}
    mime_type = safe_mime(media.mime_type)
    if media.kind in ("image", "audio"):
        return {"type": media.kind, "data": await media.as_base64(), "mimeType": mime_type, "_meta": meta}
    resource = {"uri": f"media://{media.id}", "mimeType": mime_type, "blob": await media.as_base64()}
    return {"type": "resource", "resource": resource, "_meta": meta}


def text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def safe_mime(mime_type: str) -> str:
    """A bare `type/subtype`: parameters could forge a second `;base64,` or a header."""
    return mime_type if _MIME.fullmatch(mime_type) else "application/octet-stream"


def safe_name(name: str) -> str:
    cleaned = _UNSAFE_IN_NAME.sub("", name)
    return cleaned if len(cleaned) <= _MAX_NAME else f"{cleaned[:_MAX_NAME]}…"


def size_text(size: int | None) -> str:
    if size is None:
        return "unknown size"
    amount = float(size)
    for unit in ("B", "KB", "MB"):
        if amount < 1024:
            return f"{amount:.1f} {unit}" if unit != "B" else f"{size} B"
        amount /= 1024
    return f"{amount:.1f} GB"


async def _openai_native(media: Media) -> Block | None:
    mime_type = safe_mime(media.mime_type)
    if media.kind == "image":
        return {"type": "image_url", "image_url": {"url": await _data_uri(media, mime_type)}}
    if media.kind == "audio" and mime_type.lower() in _AUDIO_FORMATS:
        audio = {"data": await media.as_base64(), "format": _AUDIO_FORMATS[mime_type.lower()]}
        return {"type": "input_audio", "input_audio": audio}
    if media.kind == "document":
        file = {"filename": safe_name(media.filename), "file_data": await _data_uri(media, mime_type)}
        return {"type": "file", "file": file}
    return None


async def _data_uri(media: Media, mime_type: str) -> str:
    return f"data:{mime_type};base64,{await media.as_base64()}"


async def _substitute(media: Media, nonce: str, policy: UnsupportedPolicy, keys: Sequence[str]) -> str:
    if policy == "throw":
        raise UnsupportedMediaModality(
            f"{media.kind} of type {safe_mime(media.mime_type)!r} cannot be shown to this provider",
            help="choose the policy 'fallback-stash' or 'synthetic-description'",
        )
    if policy == "fallback-stash":
        for key in keys:
            entry = media.stash.get(key)
            if isinstance(entry, dict) and isinstance(entry.get("value"), str):
                return _fallback(media, entry["value"], _effective_tier(media, entry.get("trust_tier")), nonce)
    size = size_text(await media.byte_length())
    return f"[media: {safe_name(media.filename)}, {safe_mime(media.mime_type)}, {size}]"


def _effective_tier(media: Media, claimed: Any) -> TrustTier:
    """The less trusted of asset and entry; middleware may have added an entry that claims no known tier."""
    return less_trusted(claimed if claimed in TIERS else "third-party-private", media.trust_tier)


def _fallback(media: Media, text: str, tier: TrustTier, nonce: str) -> str:
    attributes = {"kind": "media-fallback", "modality": _MODALITIES[media.modality_hazard]}
    authority: Literal["trusted", "untrusted"] = "trusted" if tier == "first-party" else "untrusted"
    return content_envelope(authority, text, nonce=nonce, attributes=attributes).render()
