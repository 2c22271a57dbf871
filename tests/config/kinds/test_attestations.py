"""The shape of attestations, of the review that a Gateway requires, and of the owners of callers."""

from typing import Any

import pytest

from gateway.config.kinds.validation import validate_document

ATTESTATION: dict[str, Any] = {
    "apiVersion": "gateway/v1",
    "kind": "Attestation",
    "metadata": {"name": "team-a", "owner": "team-a"},
    "spec": {
        "by": "Kim",
        "date": "2026-11-16",
        "until": "2026-11-16",
        "digest": f"sha256:{'0' * 64}",
        "access": [
            {
                "catalogue": "desk",
                "callers": ["user:ana"],
                "objects": ["tool:pay"],
                "may": ["see", "read:artifact_grep"],
            }
        ],
    },
}


def problems(document: dict[str, Any]) -> list[tuple[str, tuple[str | int, ...]]]:
    _, found = validate_document(document)
    return [(each.code, each.path) for each in found]


def changed(**fields: Any) -> dict[str, Any]:
    return {**ATTESTATION, "spec": {**ATTESTATION["spec"], **fields}}


def changed_access(**fields: Any) -> dict[str, Any]:
    return changed(access=[{**ATTESTATION["spec"]["access"][0], **fields}])


def test_attestation_of_one_day_is_valid() -> None:
    assert problems(ATTESTATION) == []
    assert problems(changed(access=[])) == []


@pytest.mark.parametrize(
    ("document", "code", "path"),
    [
        pytest.param(changed(until="2026-11-15"), "bad-date", ("spec", "until"), id="over-before-it-begins"),
        pytest.param(changed(digest="sha256:00"), "wrong-value", ("spec", "digest"), id="digest"),
        pytest.param(changed(by=""), "wrong-value", ("spec", "by"), id="person"),
        pytest.param(changed_access(may=["own"]), "wrong-value", ("spec", "access", 0, "may", 0), id="action"),
        pytest.param(changed_access(objects=["pay"]), "bad-name", ("spec", "access", 0, "objects", 0), id="object"),
        pytest.param(changed_access(callers=[]), "wrong-value", ("spec", "access", 0, "callers"), id="no-caller"),
        pytest.param(changed_access(callers=["a\nb"]), "wrong-value", ("spec", "access", 0, "callers", 0), id="lines"),
        pytest.param(changed(more=1), "unknown-field", ("spec", "more"), id="field"),
    ],
)
def test_wrong_attestation_is_refused(document: dict[str, Any], code: str, path: tuple[str | int, ...]) -> None:
    assert problems(document) == [(code, path)]


KEYS = {"fromUrl": "https://login.example.com/keys"}
JWT = {"type": "jwt", "issuer": "https://login.example.com", "audience": ["a"], "algorithms": ["ES256"], "keys": KEYS}
TOKEN = {"subject": "agent:bot", "sha256": {"fromEnv": "BOT"}, "expires": "2029-12-31"}


@pytest.mark.parametrize(
    ("spec", "subject", "is_valid"),
    [
        pytest.param({"type": "none", "subject": "agent:bot"}, "agent:bot", True, id="none"),
        pytest.param({"type": "none", "subject": "agent:bot"}, "agent:bat", False, id="none-other"),
        pytest.param({"type": "token", "tokens": [TOKEN]}, "agent:bot", True, id="token"),
        pytest.param({"type": "token", "tokens": [TOKEN]}, "agent:bat", False, id="token-other"),
        pytest.param(JWT, "user:ana", True, id="jwt"),
        pytest.param(JWT, "agent:bot", False, id="jwt-other"),
        pytest.param({**JWT, "subject": {"prefix": "agent:"}}, "agent:bot", True, id="jwt-prefix"),
    ],
)
def test_owner_is_declared_for_a_possible_caller(spec: dict[str, Any], subject: str, is_valid: bool) -> None:
    document = {
        "apiVersion": "gateway/v1",
        "kind": "IdentityProvider",
        "metadata": {"name": "p", "owner": "team-a"},
        "spec": {**spec, "owners": {subject: "team-a"}},
    }

    assert problems(document) == ([] if is_valid else [("wrong-value", ("spec", "owners", subject))])
