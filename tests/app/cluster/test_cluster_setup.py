"""The secret that gateways of one database share."""

from pathlib import Path

import pytest

from gateway.app.cluster.cluster_setup import load_peer_key
from gateway.app.settings import Settings
from gateway.app.startup_checks import StartRefused


def test_secret_that_cannot_be_read_is_reported_and_one_that_can_is_taken_without_its_line_end(tmp_path: Path) -> None:
    given = {"peer_url": "http://127.0.0.1:8079", "peer_key_file": tmp_path / "key"}
    with pytest.raises(StartRefused, match="cannot be read"):
        load_peer_key(Settings.model_validate(given))
    (tmp_path / "key").write_bytes(b"x" * 32 + b"\r\n")

    found = load_peer_key(Settings.model_validate(given))

    assert found is not None
    assert found.reveal() == b"x" * 32
    assert load_peer_key(Settings.model_validate({})) is None
