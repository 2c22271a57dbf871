"""Workers agree on a revision even if one of them is gone."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.app.cluster.reload_consensus import PreparedReload, WorkerGroup

pytestmark = pytest.mark.anyio


def make_worker_group(*answers: Mapping[str, Any]) -> WorkerGroup:
    """The group of worker 1, in which the other workers give these answers."""

    async def ask(path: str, *, within: float = 1, body: bytes | None = None, only: int | None = None) -> Any:
        replies = {index: json.dumps(each).encode() for index, each in enumerate(answers) if only in (None, index)}
        return replies

    return WorkerGroup(1, tuple(range(len(answers))), ask)


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
    standing = PreparedReload.new("new")

    found, problems = await standing.wait_decision(make_worker_group(*served), before="r1", within=0)

    assert found is is_put
    assert problems == ["the worker that led the reload is gone"]


async def test_word_counts_whatever_others_serve() -> None:
    standing = PreparedReload.new("new")
    standing.word.set_result((False, ["worker 2: no"]))

    assert await standing.wait_decision(make_worker_group({"digest": "new", "revision": "r2"}), before="r1") == (
        False,
        ["worker 2: no"],
    )


async def test_problems_of_workers_are_reported_by_worker_number() -> None:
    found = await make_worker_group({"problems": []}, {"problems": ["a", "b"]}).prepare("new", "request")

    assert found == ["worker 1: a", "worker 1: b"]


async def test_worker_that_is_there_and_leads_is_asked_to() -> None:
    assert await make_worker_group({"outcome": "published"}).ask_leader(expected=None, why="request") == {
        "outcome": "published"
    }
    assert await make_worker_group().ask_leader(expected=None, why="request") is None
