"""What every test shares: the async backend, and how Hypothesis chooses its examples."""

import os

import pytest
from hypothesis import settings

# The same examples on every run, so that a red build is about the change in it; `explore` looks for new ones.
# No deadlines: a busy machine is no failure.
settings.register_profile("steady", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("explore", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture
def anyio_backend() -> str:
    """The core waits on asyncio primitives, so async tests run on asyncio alone."""
    return "asyncio"
