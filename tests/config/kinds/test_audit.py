"""Audit log storage and notifications: refused documents, and the defaults of omitted fields."""

from datetime import timedelta
from typing import Any

import pytest

from gateway.config.kinds.installation import GatewayDocument
from gateway.config.kinds.validation import validate_document
from tests.config.kinds.example_documents import changed, without

OTHER = "Gateway-other"


def problems(path: str, value: Any) -> list[tuple[str, str]]:
    _, found = validate_document(changed(OTHER, path, value))
    return [(each.code, ".".join(map(str, each.path))) for each in found]


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        pytest.param("spec.audit.required", False, "wrong-value", id="not-required"),
        pytest.param("spec.audit.required", 1, "wrong-value", id="required-number"),
        pytest.param("spec.audit.key", "0" * 64, "secret-as-text", id="key-as-text"),
        pytest.param("spec.audit.anchors.signingKey", "-----BEGIN PRIVATE KEY-----", "secret-as-text", id="pem"),
        pytest.param("spec.audit.anchors.every", "900ms", "bad-duration", id="too-often"),
        pytest.param("spec.audit.anchors.every", "25h", "bad-duration", id="too-seldom"),
        pytest.param("spec.audit.anchors.every", 60, "wrong-type", id="every-number"),
        pytest.param("spec.audit.anchors.entries", 0, "wrong-value", id="no-entries"),
        pytest.param("spec.audit.anchors.entries", 10**7, "wrong-value", id="too-many-entries"),
        pytest.param("spec.audit.anchors.entries", True, "wrong-type", id="entries-bool"),
        pytest.param("spec.audit.anchors.path", "a\nb", "bad-path", id="path"),
        pytest.param("spec.webhooks.0.url", "http://chat.example.com/", "bad-url", id="http"),
        pytest.param("spec.webhooks.0.url", "http://10.1.2.3/", "bad-url", id="http-inside"),
        pytest.param("spec.webhooks.0.url", "http://localhost.example.com/", "bad-url", id="not-this-host"),
        pytest.param("spec.webhooks.0.url", "https://user:pass@chat.example.com/", "bad-url", id="password"),
        pytest.param("spec.webhooks.0.url", "ftp://chat.example.com/", "bad-url", id="ftp"),
        pytest.param("spec.webhooks.0.secret", "hunter2", "secret-as-text", id="secret"),
        pytest.param("spec.webhooks.0.events", [], "wrong-value", id="no-events"),
        pytest.param("spec.webhooks.0.events.0", "used", "wrong-value", id="unknown-event"),
        pytest.param("spec.webhooks.0.networks.0", "8.8.8.0/24", "bad-network", id="public-network"),
        pytest.param("spec.webhooks.1.name", "chat", "wrong-value", id="name-twice"),
    ],
)
def test_what_cannot_stand_there_is_refused_at_its_place(path: str, value: Any, code: str) -> None:
    assert problems(path, value) == [(code, path)]


@pytest.mark.parametrize(
    "url",
    ["http://localhost:1/", "http://LOCALHOST./", "http://127.0.0.9/", "http://[::1]:80/x?y=z", "https://10.1.2.3/"],
)
def test_this_host_needs_no_https(url: str) -> None:
    assert problems("spec.webhooks.0.url", url) == []


@pytest.mark.parametrize("path", ["spec.audit.anchors.path", "spec.audit.anchors.signingKey", "spec.webhooks.0.secret"])
def test_what_is_needed_is_asked_for(path: str) -> None:
    _, found = validate_document(without(OTHER, path))

    assert [each.code for each in found] == ["missing-field"]


def test_what_is_left_out_has_a_meaning() -> None:
    data = without(OTHER, "spec.audit.anchors.every")
    del data["spec"]["audit"]["anchors"]["entries"], data["spec"]["audit"]["key"], data["spec"]["audit"]["required"]

    document, found = validate_document(data)

    assert found == []
    assert isinstance(document, GatewayDocument)
    audit = document.spec.audit
    assert audit is not None
    assert audit.anchors is not None
    assert (audit.key, audit.required) == (None, True)
    assert (audit.anchors.every, audit.anchors.entries) == (timedelta(seconds=60), 1000)
    assert document.spec.webhooks[1].events == ("requested", "decided", "expired")
