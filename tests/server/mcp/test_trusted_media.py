"""Media of a trusted upstream or tool are never marked as trusted; its texts are."""

from typing import Any

import pytest

from gateway.engine.result_content import media_meta
from gateway.model.caller import Principal
from gateway.registries.effective_trust import EffectiveTrust, Tier
from gateway.registries.snapshot import DeclaredDefinition
from gateway.server.mcp.prompts_and_resources import _trust_meta
from gateway.storage.call_store import StoredCall, StoredResult

TRUSTED = EffectiveTrust(Tier("internal", 0, "first-party", may_be_trusted=True), frozenset(), True, True)


def an_offer(trust: EffectiveTrust = TRUSTED) -> DeclaredDefinition:
    offer = DeclaredDefinition.__new__(DeclaredDefinition)
    object.__setattr__(offer, "trust", trust)
    return offer


@pytest.mark.parametrize(
    ("part", "is_trusted"),
    [
        ({"type": "text", "text": "words"}, True),
        ({"uri": "file:///a", "text": "words"}, True),
        ({"uri": "file:///a", "blob": "AAAA"}, False),
        ({"uri": "file:///a", "blob": "AAAA", "text": "words"}, False),
        ({"type": "image", "data": "AAAA", "mimeType": "image/png"}, False),
        ({"type": "audio", "data": "AAAA", "text": "words"}, False),
        ({"type": "resource_link", "uri": "file:///a"}, False),
        ({"type": "text", "text": 1}, False),
    ],
    ids=str,
)
def test_only_text_of_an_upstream_can_be_trusted(part: dict[str, Any], is_trusted: bool) -> None:
    untrusted = EffectiveTrust(TRUSTED.tier, frozenset(), False, True)

    assert _trust_meta(an_offer(), part)["trusted"] is is_trusted
    assert _trust_meta(an_offer(untrusted), part)["trusted"] is False


@pytest.mark.parametrize(
    ("kinds", "is_error", "is_trusted"),
    [
        (["artifact"], False, True),
        (["text"], False, True),
        (["artifact", "artifact"], False, True),
        (["media"], False, False),
        (["artifact", "media"], False, False),
        (["text"], True, False),
    ],
    ids=str,
)
def test_record_of_media_is_never_trusted(kinds: Any, is_error: bool, is_trusted: bool) -> None:
    results = [StoredResult(kind) for kind in kinds]
    call = StoredCall("c", "t", "tool", "tool", {}, "", Principal("user:ana"), "desk", "r", 0, results=results)
    call.is_error, call.trusted = is_error, True

    assert call.is_trusted is is_trusted


def test_media_descriptions_have_no_field_for_trust() -> None:
    assert media_meta.__annotations__["return"].__annotations__["trusted"].__args__ == (False,)
