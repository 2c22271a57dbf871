"""Object stores that are reached in clear are told, unless they are on the same machine."""

import pytest
from linking_projects import INSTALLATION, document, gateway, linked, problem, told


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
def test_store_beyond_this_machine_is_told(endpoint: str) -> None:
    found = linked(installation=installation(endpoint))

    assert told(found) == ["store-in-clear"]
    assert problem(found, "store-in-clear").severity == "warning"


@pytest.mark.parametrize(
    "endpoint",
    [None, "https://objects.example.com", "http://127.0.0.1:8333", "http://localhost:9000", "http://[::1]:9000/"],
)
def test_store_that_nobody_can_listen_to_is_not(endpoint: str | None) -> None:
    assert told(linked(installation=installation(endpoint))) == []
