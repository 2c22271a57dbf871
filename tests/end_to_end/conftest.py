"""One process with everything imported, from which gateways are forked."""

from collections.abc import Iterator

import pytest
from forked import Forking, forking


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    with forking(tmp_path_factory.mktemp("forks")) as found:
        yield found
