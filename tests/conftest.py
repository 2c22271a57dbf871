"""What every test shares: the async backend, and how Hypothesis chooses its examples."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import alembic  # noqa: F401 - tests make databases by the hundred: none of them waits for a process that does it
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from seaweed import ObjectStore

# The same examples on every run, so that a red build is about the change in it; `explore` looks for new ones.
# No deadlines: a busy machine is no failure.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


pytest_plugins = ["installed_packages", "postgres_clusters"]

LONG = {
    "test_accepted_hostile",
    "test_approval_crashes",
    "test_audit_crashes",
    "test_backend_openapi_real",
    "test_chart_runs",
    "test_cli_render",
    "test_clock_steps",
    "test_drain_load",
    "test_durability_sessions",
    "test_full_disk_served",
    "test_gates_workers",
    "test_limits_across_processes",
    "test_postgres_replicas",
    "test_reload_workers",
    "test_replica_kills",
    "test_security_hostile_upstreams",
    "test_security_start",
    "test_serve_interrupted",
    "test_serve_output",
    "test_storage_moves",
    "test_store_crashes",
}
"""Modules that start many processes, or wait for time to pass. They are left out where SHORT is set."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("SHORT"):
        for item in items:
            if item.path.stem in LONG:
                item.add_marker(pytest.mark.skip(reason="takes long, and SHORT is set"))


@pytest.fixture
def anyio_backend() -> str:
    """The core waits on asyncio primitives, so async tests run on asyncio alone."""
    return "asyncio"


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ObjectStore]":
    """A real object store, for whoever asks for it."""
    from seaweed import object_store  # only they wait for its library

    with object_store(tmp_path_factory.mktemp("seaweed")) as store:
        yield store
