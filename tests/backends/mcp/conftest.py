"""Fixtures for upstream servers. The reference SDK warns if a server uses what the newest revision deprecates."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    given_up = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
    for item in items:
        if "tests/backends/mcp" in item.path.as_posix():
            item.add_marker(given_up)
