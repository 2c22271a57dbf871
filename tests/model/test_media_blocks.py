"""Media for a model: native blocks, fallbacks in the right envelope, and names that cannot inject."""

import base64
from typing import Any

import pytest

from gateway.errors import UnsupportedMediaModality
from gateway.model.media import FileMediaReader, InMemoryMediaReader, Media, MediaKind, OpenedMediaReader, TrustTier
from gateway.model.provider_formats import format_size, mcp_block, openai_blocks, sanitize_file_name, sanitize_mime_type

pytestmark = pytest.mark.anyio

DATA = base64.b64encode(b"bytes").decode()


def media(kind: MediaKind, mime_type: str, **fields: Any) -> Media:
    fields = {"filename": "asset", "reader": InMemoryMediaReader(b"bytes"), "id": "m1", **fields}
    return Media.tool_generated(kind, mime_type=mime_type, **fields)


@pytest.mark.parametrize(
    ("asset", "block"),
    [
        pytest.param(
            media("image", "image/png"),
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
            id="image",
        ),
        pytest.param(
            media("audio", "audio/x-wav"),
            {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
            id="wav",
        ),
        pytest.param(
            media("audio", "audio/MPEG"),
            {"type": "input_audio", "input_audio": {"data": DATA, "format": "mp3"}},
            id="mp3",
        ),
        pytest.param(
            media("document", "application/pdf"),
            {"type": "file", "file": {"filename": "asset", "file_data": f"data:application/pdf;base64,{DATA}"}},
            id="document",
        ),
        pytest.param(
            media("image", "image/png;base64,AAAA\r\nX: y"),
            {"type": "image_url", "image_url": {"url": f"data:application/octet-stream;base64,{DATA}"}},
            id="mime with a second payload",
        ),
    ],
)
async def test_native_block_follows_its_marker(asset: Media, block: dict[str, Any]) -> None:
    marker = {"type": "text", "text": "[media id: m1 | asset]"}

    assert await openai_blocks(asset, nonce="n") == [marker, block]


@pytest.mark.parametrize("asset", [media("video", "video/mp4"), media("audio", "audio/ogg")], ids=["video", "ogg"])
async def test_unsupported_media_is_refused_by_default(asset: Media) -> None:
    with pytest.raises(UnsupportedMediaModality) as caught:
        await openai_blocks(asset, nonce="n")

    assert caught.value.help is not None


async def test_synthetic_description_names_type_and_size_without_reading() -> None:
    def opener() -> Any:
        raise AssertionError("the bytes were read")

    asset = media("video", "video/mp4", filename="clip<.mp4", reader=OpenedMediaReader(opener))

    *_, block = await openai_blocks(asset, nonce="n", unsupported="synthetic-description")

    assert block["text"] == "[media: clip.mp4, video/mp4, unknown size]"


@pytest.mark.parametrize(
    ("entry_tier", "asset_tier", "authority"),
    [
        ("first-party", "first-party", "trusted"),
        ("first-party", "third-party-public", "untrusted"),
        ("third-party-public", "first-party", "untrusted"),
        ("third-party-private", "third-party-public", "untrusted"),
    ],
)
async def test_fallback_text_is_as_trusted_as_the_less_trusted_side(
    entry_tier: TrustTier, asset_tier: TrustTier, authority: str
) -> None:
    asset = Media(
        kind="video",
        mime_type="video/mp4",
        filename="clip.mp4",
        reader=InMemoryMediaReader(b""),
        trust_tier=asset_tier,
        modality_hazard="opaque-perceptual",
        stash={"text:caption": {"value": "a cat", "trust_tier": entry_tier}},
    )

    *_, block = await openai_blocks(asset, nonce="n1", unsupported="fallback-stash")

    assert block["text"] == (
        f'<{authority}_content_n1 nonce="n1" kind="media-fallback" modality="opaque">\na cat\n</{authority}_content_n1>'
    )


@pytest.mark.parametrize("tier", [{}, {"trust_tier": "root"}, {"trust_tier": []}], ids=["none", "unknown", "a list"])
async def test_entry_of_middleware_that_claims_no_known_tier_is_untrusted(tier: dict[str, Any]) -> None:
    asset = media("video", "video/mp4")
    asset.stash.set("text:caption", {"value": "obey", **tier})

    *_, block = await openai_blocks(asset, nonce="n", unsupported="fallback-stash")

    assert block["text"].startswith("<untrusted_content_n ")


async def test_fallback_keys_are_tried_in_order_and_only_texts_count() -> None:
    stash = {
        "text:caption": {"value": 7, "trust_tier": "first-party"},
        "text:description": {"value": "described", "trust_tier": "first-party"},
        "summary": {"value": "own key", "trust_tier": "first-party"},
    }
    asset = media("video", "video/mp4", stash=stash)

    *_, default = await openai_blocks(asset, nonce="n", unsupported="fallback-stash")
    *_, configured = await openai_blocks(asset, nonce="n", unsupported="fallback-stash", fallback_keys=("summary",))
    *_, nothing = await openai_blocks(asset, nonce="n", unsupported="fallback-stash", fallback_keys=("none",))

    assert "\ndescribed\n" in default["text"]
    assert "\nown key\n" in configured["text"]
    assert nothing["text"] == "[media: asset, video/mp4, 5 B]"


async def test_mcp_blocks_carry_tier_and_hazard() -> None:
    meta = {"tier": "first-party", "hazard": "opaque-perceptual"}

    assert await mcp_block(media("image", "image/png")) == {
        "type": "image",
        "data": DATA,
        "mimeType": "image/png",
        "_meta": meta,
    }
    assert await mcp_block(media("document", "application/pdf")) == {
        "type": "resource",
        "resource": {"uri": "media://m1", "mimeType": "application/pdf", "blob": DATA},
        "_meta": {"tier": "first-party", "hazard": "extractable-instructions"},
    }


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("image/svg+xml", "image/svg+xml"),
        ("text/plain; charset=utf-8", "application/octet-stream"),
        ("image", "application/octet-stream"),
        ("image/png\n", "application/octet-stream"),
    ],
)
def test_mime_type_is_bare_or_unknown(given: str, safe: str) -> None:
    assert sanitize_mime_type(given) == safe


def test_file_name_loses_brackets_and_controls_and_is_cut() -> None:
    assert sanitize_file_name("a<b>\x00\x9f\nc") == "abc"
    assert sanitize_file_name("x" * 256) == "x" * 256
    assert sanitize_file_name("x" * 257) == "x" * 256 + "…"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "unknown size"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KB"),
        (5 << 20, "5.0 MB"),
        (3 << 30, "3.0 GB"),
        (5 << 40, "5120.0 GB"),
    ],
)
def test_sizes_are_readable(size: int | None, text: str) -> None:
    assert format_size(size) == text


async def test_file_backed_media_renders_its_bytes(tmp_path: Any) -> None:
    (tmp_path / "a.png").write_bytes(b"bytes")

    *_, block = await openai_blocks(media("image", "image/png", reader=FileMediaReader(tmp_path / "a.png")), nonce="n")

    assert block["image_url"]["url"].endswith(DATA)
