"""Settings of the decision log: keys and terms of anchors from a document and secrets, and refused keys."""

from datetime import timedelta
from pathlib import Path

import pytest

from gateway.app.audit_settings import build_audit_settings, load_content_key
from gateway.app.secrets import SecretMissing, Secrets
from gateway.audit.content_hash import ContentKey, WeakKey
from gateway.audit.signing_keys import SigningKey
from gateway.config.kinds.installation import AuditSpec

KEY = SigningKey.generate()
HEX = "0123456789abcdeffedcba98765432100f1e2d3c4b5a69788796a5b4c3d2e1f0"
EMPTY = AuditSpec.model_validate({})
AUDIT = AuditSpec.model_validate(
    {
        "key": {"fromEnv": "CONTENTS"},
        "anchors": {
            "path": "/mnt/anchors.jsonl",
            "signingKey": {"fromEnv": "ANCHORS"},
            "every": "30s",
            "entries": 3,
        },
    }
)


def secrets(tmp_path: Path, **environ: str) -> Secrets:
    return Secrets({"CONTENTS": HEX, "ANCHORS": KEY.pem().decode(), **environ}, tmp_path)


def test_document_and_secrets_make_keys_and_terms(tmp_path: Path) -> None:
    found = build_audit_settings(AUDIT, secrets(tmp_path))

    assert found.key.id == ContentKey(HEX).id
    assert found.anchors is not None
    assert (found.anchors.path, found.anchors.key.id) == (Path("/mnt/anchors.jsonl"), KEY.id)
    assert (found.anchors.every, found.anchors.entries) == (timedelta(seconds=30), 3)
    assert found.warnings == ()
    assert HEX not in repr(found)


def test_without_a_key_each_process_generates_one_and_logs_it(tmp_path: Path) -> None:
    ids = {load_content_key(audit, secrets(tmp_path)).id for audit in (None, None, EMPTY)}
    found = build_audit_settings(None, secrets(tmp_path))

    assert len(ids) == 3
    assert found.anchors is None
    assert found.warnings == (
        "the Gateway names no audit.key: hashes in the log cannot be compared across restarts",
        "the Gateway names no audit.anchors: a truncated or rewritten log is not detected",
    )


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        pytest.param({"CONTENTS": "ab" * 16}, "audit.key of the Gateway: the content key has 16 bytes", id="short"),
        pytest.param({"CONTENTS": "hunter2 hunter2"}, "audit.key of the Gateway: the content key is a", id="words"),
        pytest.param({"CONTENTS": "00" * 32}, "audit.key of the Gateway: the content key repeats", id="zeros"),
        pytest.param(
            {"ANCHORS": "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"},
            "audit.anchors.signingKey of the Gateway: the private key cannot be read",
            id="no-pem",
        ),
        pytest.param({"ANCHORS": "hunter2"}, "audit.anchors.signingKey of the Gateway: the anchor key", id="no-key"),
    ],
)
def test_weak_key_is_refused_by_the_name_of_its_field(tmp_path: Path, environ: dict[str, str], message: str) -> None:
    with pytest.raises(WeakKey) as refused:
        build_audit_settings(AUDIT, secrets(tmp_path, **environ))

    assert refused.value.message.startswith(message)
    assert "gateway audit keygen" in (refused.value.help or "")
    assert "hunter2" not in f"{refused.value.message} {refused.value.help} {refused.value.__cause__}"


@pytest.mark.parametrize("missing", ["CONTENTS", "ANCHORS"])
def test_missing_key_is_refused(tmp_path: Path, missing: str) -> None:
    with pytest.raises(SecretMissing, match=missing):
        build_audit_settings(AUDIT, secrets(tmp_path, **{missing: ""}))
