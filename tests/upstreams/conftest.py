"""Tests of upstream servers: the reference SDK warns where a server uses what the newest revision gives up."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    given_up = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
    for item in items:
        if "tests/upstreams" in item.path.as_posix():
            item.add_marker(given_up)
