"""One real gateway for all clients: the project of the promises, served by a process of its own."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
WIRE = TESTS / "promises" / "wire"
sys.path[:0] = [str(TESTS / "end_to_end"), str(WIRE)]  # whatever is collected first: both are used here, too

from served import Served, served  # noqa: E402 - found by the line above
from wire_gateway import ENVIRON, PROJECT  # noqa: E402 - likewise


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = os.pathsep.join([str(WIRE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with served(PROJECT, tmp_path_factory.mktemp("clients"), env={**ENVIRON, "PYTHONPATH": path}) as started:
        yield started
        assert started.stop() == 0
