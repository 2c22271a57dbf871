import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The core waits on asyncio primitives, so async tests run on asyncio alone."""
    return "asyncio"
