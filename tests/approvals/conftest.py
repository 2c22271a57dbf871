from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from held_calls import Desk, desk_at


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk_at(tmp_path / "gateway.db") as desk:
        yield desk
