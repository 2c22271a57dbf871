"""Any request gets an answer that the API describes, and never an internal error."""

import json
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.server.rest.operation_table import OPERATIONS
from tests.server.rest.gateway import running

STORED = [each for each in OPERATIONS if not each.path.startswith("/v1/grants")]  # here no store has grants: 503
POSTS = [each for each in STORED if each.method == "POST"]
GETS = [each for each in STORED if each.method == "GET"]
MEMBERS = ("arguments", "turn", "catalogue", "stash", "id", "tool", "as", "method", "callId", "extra", "text")

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    # a text that is not valid UTF-8 cannot be sent
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    | st.sampled_from(["desk", "echo", "artifact_head", "ack", "head", "{}", '{"callId": 1}']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=4),
    max_leaves=8,
)
bodies = st.dictionaries(st.sampled_from(MEMBERS), values, max_size=4) | values
segments = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20) | st.sampled_from(
    ["desk", "echo", "..", "artifact_head", "turn_x", "call_1"]
)
queries = st.dictionaries(
    st.sampled_from(["turn", "limit", "cursor", "format", "part", "status", "x"]), segments, max_size=3
)


def path_of(template: str, parts: list[str]) -> str:
    """The path with its parameters filled in, as a server would have decoded it."""
    remaining = iter(parts)
    return re.sub(r"{\w+}", lambda _: next(remaining), template)


async def statuses(requests: list[tuple[str, str, dict[str, str], Any]]) -> set[int]:
    found = set()
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder)) as gateway, gateway.client() as client:
            gateway.tried.go_on.set()
            for method, path, query, body in requests:
                content = json.dumps(body).encode() if method == "POST" else None
                answer = await client.request(
                    method, quote(path), params=query, content=content, headers={"content-type": "application/json"}
                )
                found.add(answer.status_code)
    return found


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.sampled_from(POSTS), st.lists(segments, min_size=2, max_size=2), queries, bodies), min_size=20
    )
)
def test_no_body_makes_the_gateway_fail(drawn: list[tuple[Any, list[str], dict[str, str], Any]]) -> None:
    requests = [("POST", path_of(each.path, parts), query, body) for each, parts, query, body in drawn]

    found = anyio.run(partial(statuses, requests))

    assert found <= {200, 201, 400, 404, 405, 409}


@settings(max_examples=15)
@given(st.lists(st.tuples(st.sampled_from(GETS), st.lists(segments, min_size=2, max_size=2), queries), min_size=20))
def test_no_path_or_query_makes_the_gateway_fail(drawn: list[tuple[Any, list[str], dict[str, str]]]) -> None:
    requests = [("GET", path_of(each.path, parts), query, None) for each, parts, query in drawn]

    found = anyio.run(partial(statuses, requests))

    assert found <= {200, 304, 400, 404, 405}
