"""One real gateway for all clients: the project of the promise tests, served by its own process."""

from collections.abc import Iterator

import pytest

from tests.promises.transports.gateway import ENVIRON, PROJECT
from tests.support.gateways.process import GatewayProcess, start_gateway_process


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with start_gateway_process(PROJECT, tmp_path_factory.mktemp("clients"), env=ENVIRON) as started:
        yield started
        assert started.stop() == 0
