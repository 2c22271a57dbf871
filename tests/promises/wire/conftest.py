"""One gateway per file of tests, and for each test a turn on it over each of the wires."""

from collections.abc import AsyncIterator

import promised_tools
import pytest
from wire_gateway import Gateway, gateway_of
from wire_talks import TALKS, Talk


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The gateway lives in one event loop, and so do the tests that share it."""
    return "asyncio"


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Gateway]:
    async with gateway_of(tmp_path_factory.mktemp("promises")) as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    promised_tools.done.forget()


@pytest.fixture(params=TALKS, ids=lambda talk: str(talk.wire))
def talk(request: pytest.FixtureRequest, gateway: Gateway) -> Talk:
    made: Talk = request.param(gateway)
    return made
