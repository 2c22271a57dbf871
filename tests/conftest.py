"""Shared by all tests: the async backend, and how Hypothesis chooses its examples."""

import gc
import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import alembic  # noqa: F401 - tests make databases by the hundred: none of them waits for a process that does it
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.approvals.held_calls import ApprovalFixture
    from tests.support.gateways.forkserver import ForkServer
    from tests.support.servers.object_store import ObjectStore

# The same examples on every run, so that a red build is about the change in it; `explore` looks for new ones.
# No deadlines: a busy machine is no failure.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


pytest.register_assert_rewrite("tests.support")
pytest_plugins = ["tests.support.stage_packages", "tests.support.servers.postgres_server"]

TESTS = Path(__file__).parent
LONG = {
    "approvals/test_crashes.py",
    "backends/mcp/definitions/test_auto_accept_hostile.py",
    "backends/openapi/test_real_documents.py",
    "charts/test_pods.py",
    "cli/project/test_render.py",
    "end_to_end/audit/test_crashes.py",
    "end_to_end/durability/test_clock_steps.py",
    "end_to_end/durability/test_drain_load.py",
    "end_to_end/durability/test_full_disk.py",
    "end_to_end/durability/test_sessions.py",
    "end_to_end/gates/test_workers.py",
    "end_to_end/security/test_hostile_services.py",
    "end_to_end/security/test_start_refusals.py",
    "end_to_end/server/test_interruption.py",
    "end_to_end/server/test_output.py",
    "end_to_end/server/test_reload_workers.py",
    "end_to_end/storage/test_moves.py",
    "end_to_end/storage/test_postgres_replicas.py",
    "end_to_end/storage/test_replica_kills.py",
    "policy/limits/test_processes.py",
    "storage/sql/test_crashes.py",
}
"""Modules that start many processes or wait for time to pass. They are skipped where SHORT is set."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("SHORT"):
        for item in items:
            if item.path.relative_to(TESTS).as_posix() in LONG:
                item.add_marker(pytest.mark.skip(reason="takes long, and SHORT is set"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests and modules stay to the end: no collection of garbage looks at them, neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are processors: tests that wait leave theirs to another."""
    return (os.cpu_count() or 1) + 2


@pytest.fixture
def anyio_backend() -> str:
    """The core waits on asyncio primitives, so async tests run on asyncio alone."""
    return "asyncio"


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ObjectStore]":
    """A real object store."""
    from tests.support.servers.object_store import object_store  # imported only by tests that need it

    with object_store(tmp_path_factory.mktemp("seaweed")) as store:
        yield store


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ForkServer]":
    """A process with everything imported that forks gateways."""
    from tests.support.gateways.forkserver import start_forkserver

    with start_forkserver(tmp_path_factory.mktemp("forks")) as found:
        yield found


@pytest.fixture
async def desk(tmp_path: Path) -> "AsyncIterator[ApprovalFixture]":
    """A store of approvals, with approvers."""
    from tests.approvals.held_calls import make_approval_fixture

    async with make_approval_fixture(tmp_path / "gateway.db") as desk:
        yield desk
