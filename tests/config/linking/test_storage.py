"""Object stores reached without TLS are a warning, unless they are on the same machine."""

import pytest

from tests.config.linking.projects import INSTALLATION, document, gateway, linked, list_codes, problem


def installation(endpoint: str | None) -> list[str]:
    blobs = {"type": "s3", "bucket": "results", **({} if endpoint is None else {"endpoint": endpoint})}
    storage = document("Storage", "main", {"type": "sqlite", "path": "data/gateway.db", "blobs": blobs})
    return [gateway(), INSTALLATION[1], storage]


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://objects.example.com",
        "http://10.0.0.7:9000",
        "http://127.0.0.1.example.com",
        "http://localhost.example.com/",
    ],
)
def test_store_beyond_this_machine_is_reported(endpoint: str) -> None:
    found = linked(installation=installation(endpoint))

    assert list_codes(found) == ["store-in-clear"]
    assert problem(found, "store-in-clear").severity == "warning"


@pytest.mark.parametrize(
    "endpoint",
    [None, "https://objects.example.com", "http://127.0.0.1:8333", "http://localhost:9000", "http://[::1]:9000/"],
)
def test_store_without_eavesdroppers_is_no_problem(endpoint: str | None) -> None:
    assert list_codes(linked(installation=installation(endpoint))) == []
