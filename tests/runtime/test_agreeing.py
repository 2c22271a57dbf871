"""Workers that agree on a revision, where one of them has gone."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.runtime.agreeing import Crew, StandingBy

pytestmark = pytest.mark.anyio


def crew(*answers: Mapping[str, Any]) -> Crew:
    """Of worker 1; the others answer that."""

    async def ask(path: str, *, within: float = 1, body: bytes | None = None, only: int | None = None) -> Any:
        told = {index: json.dumps(each).encode() for index, each in enumerate(answers) if only in (None, index)}
        return told

    return Crew(1, tuple(range(len(answers))), ask)


@pytest.mark.parametrize(
    ("served", "is_put"),
    [
        pytest.param([{"digest": "new", "revision": "r2"}], True, id="another one has changed"),
        pytest.param([{"digest": "old", "revision": "r1"}], False, id="nobody has changed"),
        pytest.param([{"digest": "new", "revision": "r1"}], False, id="nothing else is served with it"),
        pytest.param([], False, id="nobody is there"),
    ],
)
async def test_worker_without_a_word_does_what_others_did(served: list[Mapping[str, Any]], is_put: bool) -> None:
    standing = StandingBy.new("new")

    found, problems = await standing.heard(crew(*served), before="r1", within=0)

    assert found is is_put
    assert problems == ["the worker that led the reload is gone"]


async def test_word_counts_whatever_others_serve() -> None:
    standing = StandingBy.new("new")
    standing.word.set_result((False, ["worker 2: no"]))

    assert await standing.heard(crew({"digest": "new", "revision": "r2"}), before="r1") == (False, ["worker 2: no"])


async def test_what_keeps_workers_from_a_revision_is_told_by_their_number() -> None:
    found = await crew({"problems": []}, {"problems": ["a", "b"]}).prepared("new", "request")

    assert found == ["worker 1: a", "worker 1: b"]


async def test_worker_that_is_there_and_leads_is_asked_to() -> None:
    assert await crew({"outcome": "published"}).led(expected=None, why="request") == {"outcome": "published"}
    assert await crew().led(expected=None, why="request") is None
