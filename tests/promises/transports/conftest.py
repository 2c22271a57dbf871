"""One gateway per test file, and for each test a turn on it over each transport."""

from collections.abc import AsyncIterator

import pytest

from tests.promises.transports import tools as promised_tools
from tests.promises.transports.conversations import TALKS, Conversation
from tests.promises.transports.gateway import Gateway, gateway_of


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The gateway and the tests that share it use one event loop."""
    return "asyncio"


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Gateway]:
    async with gateway_of(tmp_path_factory.mktemp("promises")) as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    promised_tools.done.forget()


@pytest.fixture(params=TALKS, ids=lambda talk: str(talk.wire))
def talk(request: pytest.FixtureRequest, gateway: Gateway) -> Conversation:
    made: Conversation = request.param(gateway)
    return made
