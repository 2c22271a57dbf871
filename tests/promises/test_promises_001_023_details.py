"""Promises 1 to 23: how a call is identified, how an artifact class is named, and what Media must declare."""

import ast
import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from graphlib import TopologicalSorter
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway import (
    UNDEFINED,
    DispatchContext,
    InMemoryMediaReader,
    InMemoryReader,
    Media,
    ProposedCall,
    Reporter,
    SpooledArtifact,
    SpooledJsonArtifact,
    Tokenizable,
    Tool,
    call_id,
    settle_call,
)
from gateway.errors import InvalidInitialMediaValue, InvalidInitialToolValue, NotASpoolReader, ValidationException
from tests.promises.scripted_model import BASE_SEVEN, Seen, call, media, play, remembering, returning, tool
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

VECTOR_FILE = ROOT.parent / "shared" / "spec" / "canonical-vectors.json"

# Argument text as received, and the text that is hashed for it.
KEY_ORDER_VECTORS = [
    (
        "astral-before-private-use",
        '{"\\ue000":1,"\\ud800\\udc00":2}',
        '{"args":{"\U00010000":2,"\ue000":1},"tool":"echo"}',
    ),
    ("astral-before-fullwidth", '{"～":1,"😀":2,"z":3}', '{"args":{"z":3,"😀":2,"～":1},"tool":"echo"}'),
    ("digits-are-text", '{"9":1,"10":2,"":3}', '{"args":{"":3,"10":2,"9":1},"tool":"echo"}'),
]
PRIMITIVE_VECTORS = [
    ("integral-float", '{"n":1.0}', '{"args":{"n":1},"tool":"echo"}'),
    ("negative-zero", '{"n":-0.0}', '{"args":{"n":0},"tool":"echo"}'),
    ("exponent", '{"n":1000000000000000000000}', '{"args":{"n":1e+21},"tool":"echo"}'),
    ("unsafe-integer", '{"n":9007199254740993}', '{"args":{"n":9007199254740992},"tool":"echo"}'),
    ("small", '{"n":0.0000001}', '{"args":{"n":1e-7},"tool":"echo"}'),
    ("escapes", '{"s":"\\u0001\\n\\u007f\\/é"}', '{"args":{"s":"\\u0001\\n\x7f/é"},"tool":"echo"}'),
    ("lone-surrogate", '{"s":"a\\ud800b"}', '{"args":{"s":"a\\ud800b"},"tool":"echo"}'),
]
SMALL_VECTORS = [
    ("no-arguments", "{}", '{"args":{},"tool":"echo"}'),
    ("one-argument", '{ "query" : "hello" }', '{"args":{"query":"hello"},"tool":"echo"}'),
]


def vectors(own: list[tuple[str, str, str]], accepts: Callable[[dict[str, Any]], bool]) -> list[Any]:
    """Return argument text and expected id: the given vectors, and those of the shared file that `accepts` selects."""
    cases = [pytest.param(text, sha256(hashed.encode()).hexdigest(), id=name) for name, text, hashed in own]
    if not VECTOR_FILE.exists():
        missing = pytest.mark.skip(reason="there is no ../shared/spec/canonical-vectors.json beside this repository")
        return [*cases, pytest.param("", "", id="shared-vectors", marks=missing)]
    shared = json.loads(VECTOR_FILE.read_text(encoding="utf-8"))
    chosen = [vector for vector in shared if vector["is_object"] and accepts(vector)]
    return cases + [pytest.param(vector["input"], vector["sha256"], id=vector["name"]) for vector in chosen]


async def ids_of(*args: Any) -> list[str]:
    """Return the `call_id` in the start event of one `echo` call per value."""
    calls = [ProposedCall(f"c{index}", "echo", value) for index, value in enumerate(args)]
    seen = await play([tool("echo", returning("said"))], calls)
    started = seen.named("toolExecutionStart")
    assert len(started) == len(args)
    return [event.call_id for event in started]


@pytest.mark.parametrize(("text", "expected"), vectors(SMALL_VECTORS, lambda vector: True))
async def test_promise_001_call_id_is_sha256_over_canonical_name_and_args(text: str, expected: str) -> None:
    assert await ids_of(text) == [expected]


async def test_promise_002_hash_uses_raw_args_before_defaults() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "default": 10}}}
    handled: list[dict[str, Any]] = []
    counting = tool("count", remembering(handled), schema)

    seen = await play([counting], [call("bare", "count"), call("spelled", "count", n=10)])

    bare, spelled = seen.named("toolExecutionStart")
    assert handled == [{"n": 10}, {"n": 10}]
    assert bare.args == spelled.args == {"n": 10}
    assert bare.call_id == call_id("count", {})
    assert bare.call_id != spelled.call_id


async def test_promise_003_only_the_name_of_the_tool_enters_the_hash() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}, "later": {"type": "string"}}}
    plain = Tool(
        name="find", description="Finds.", input_schema=tool("find", print).input_schema, handler=returning("a")
    )
    edited = tool("find", returning("b"), schema, trusted=True, ephemeral=False, on_collision="keep", meta={"v": 2})

    before = await play([plain], [call("c", "find", q="x")])
    after = await play([edited], [call("c", "find", q="x")])

    expected = call_id("find", {"q": "x"})
    assert before.record("c").checksum == after.record("c").checksum == expected
    started = [*before.named("toolExecutionStart"), *after.named("toolExecutionStart")]
    assert [event.call_id for event in started] == [expected, expected]


async def test_promise_004_another_tool_name_changes_the_id() -> None:
    tools = [tool("find", returning("a")), tool("search", returning("a"))]

    seen = await play(tools, [call("one", "find", q="x"), call("two", "search", q="x")])

    one, two = seen.named("toolExecutionStart")
    assert one.args == two.args
    assert one.call_id != two.call_id


async def test_promise_005_keys_are_sorted_at_every_depth() -> None:
    one, other = await ids_of(
        {"z": {"b": 1, "a": {"d": 4, "c": 3}}, "a": [{"y": 1, "x": 2}]},
        {"a": [{"x": 2, "y": 1}], "z": {"a": {"c": 3, "d": 4}, "b": 1}},
    )

    assert one == other
    hashed = '{"args":{"a":[{"x":2,"y":1}],"z":{"a":{"c":3,"d":4},"b":1}},"tool":"echo"}'
    assert one == sha256(hashed.encode()).hexdigest()


@pytest.mark.parametrize(
    ("text", "expected"), vectors(KEY_ORDER_VECTORS, lambda vector: vector["name"].startswith("utf16-key-order"))
)
async def test_promise_006_keys_are_sorted_by_utf16_code_units(text: str, expected: str) -> None:
    assert await ids_of(text) == [expected]


@pytest.mark.parametrize(("low", "high"), [(1, 2), ("a", "é"), (1.0, 1e21)], ids=["integers", "texts", "floats"])
async def test_promise_007_arrays_keep_their_order(low: Any, high: Any) -> None:
    one, other, again = await ids_of({"ids": [low, high]}, {"ids": [high, low]}, {"ids": [low, high]})

    assert one != other
    assert one == again


@pytest.mark.parametrize(
    ("text", "expected"), vectors(PRIMITIVE_VECTORS, lambda vector: vector["input"].startswith(('{"n":', '{"s":')))
)
async def test_promise_008_primitives_print_as_javascript_prints_them(text: str, expected: str) -> None:
    assert await ids_of(text) == [expected]


@pytest.mark.parametrize("names", [("a", "b", "Z"), ("é", "～", "😀")], ids=["ascii", "beyond-ascii"])
async def test_promise_009_key_order_never_matters(names: tuple[str, str, str]) -> None:
    shuffle = random.Random(9)
    one, two, three = names
    pairs = [(f"key {index}", {one: index, two: [index], three: {"b": None, "a": True}}) for index in range(12)]

    def shuffled() -> dict[str, Any]:
        rows = [(key, dict(shuffle.sample(list(value.items()), 3))) for key, value in pairs]
        return dict(shuffle.sample(rows, len(rows)))

    orders = [shuffled() for _ in range(100)]

    assert len({json.dumps(order) for order in orders}) == 100
    assert len(set(await ids_of(*orders))) == 1


async def test_promise_010_checksum_of_the_record_is_the_call_id() -> None:
    seen = await play([tool("echo", returning("said"))], [call("c", "echo", b=1, a=[2.0])])

    (started,) = seen.named("toolExecutionStart")
    assert seen.record("c").checksum == started.call_id


async def test_promise_011_one_value_joins_both_events_the_record_and_the_rendering() -> None:
    seen = await play([tool("echo", returning("said"))], [call("c", "echo", q="x")])

    checksum = seen.record("c").checksum
    assert len(checksum) == 64
    assert [event.call_id for event in seen.named("toolExecutionStart", "toolExecutionEnd")] == [checksum, checksum]
    opener = seen.shown("c").splitlines()[0]
    assert f' call="{checksum}"' in opener


def a_cycle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(a_cycle(), id="cycle"),
        pytest.param({"when": datetime(2026, 1, 1)}, id="datetime"),
        pytest.param({"raw": b"bytes"}, id="bytes"),
        pytest.param({"some": {1, 2}}, id="set"),
        pytest.param({1: "a key that is no text"}, id="key"),
    ],
)
async def test_promise_012_args_that_cannot_be_encoded_fail_the_call_loudly(args: Any) -> None:
    handled: list[Any] = []
    echo = tool("echo", remembering(handled))
    seen = Seen()

    async def step(ctx: DispatchContext, reporter: Reporter) -> None:
        with pytest.raises((TypeError, ValueError)):
            await echo.executor(ctx)(args)
        await settle_call(ctx, reporter, ProposedCall("c", "echo", args), spool=seen.spool)

    await play([echo], step, seen=seen)

    assert seen.record("c").is_error
    assert isinstance(seen.record("c").results, Tokenizable)
    assert handled == []
    assert seen.named("toolExecutionStart", "toolExecutionEnd") == []


async def test_promise_013_nan_and_infinity_degrade_to_null() -> None:
    found = await ids_of('{"n":1e400}', '{"n":-1e400}', {"n": float("nan")}, {"n": float("inf")}, {"n": None})

    assert found == [sha256(b'{"args":{"n":null},"tool":"echo"}').hexdigest()] * 5


async def test_promise_014_undefined_is_dropped_in_objects() -> None:
    removed: dict[str, Any] = {"a": 1, "b": 2}
    del removed["b"]
    absent, after_removal, null = await ids_of({"a": 1}, removed, {"a": 1, "b": None})

    assert absent == after_removal == call_id("echo", {"a": 1, "b": UNDEFINED})
    assert null != absent
    assert call_id("echo", {"a": [UNDEFINED]}) == call_id("echo", {"a": [None]})


async def test_promise_015_distinct_values_outside_json_may_share_an_id() -> None:
    handled: list[Any] = []
    echo = tool("echo", remembering(handled))

    seen = await play([echo], [call("inf", "echo", n=float("inf")), call("null", "echo", n=None)])

    assert handled == [{"n": float("inf")}, {"n": None}]
    assert seen.record("inf").checksum == seen.record("null").checksum
    assert [event.call_id for event in seen.named("toolExecutionStart")] == [seen.record("inf").checksum] * 2


async def test_promise_016_artifact_constructor_is_a_resolver_without_arguments() -> None:
    resolved: list[str] = []

    def resolver() -> type:
        resolved.append("asked")
        return SpooledJsonArtifact

    fetch = tool("fetch", returning("{}"), artifact_constructor=resolver)
    assert resolved == ["asked"]
    seen = await play([fetch], [call("c", "fetch")])

    assert type(seen.record("c").results) is SpooledJsonArtifact
    assert tool("plain", returning("")).artifact_constructor is None
    with pytest.raises(InvalidInitialToolValue):
        tool("fetch", returning("{}"), artifact_constructor=SpooledJsonArtifact)
    with pytest.raises(InvalidInitialToolValue):
        tool("fetch", returning("{}"), artifact_constructor=lambda name: SpooledJsonArtifact)


def failing_resolver() -> type:
    raise ImportError("no module named 'plugins'")


@pytest.mark.parametrize(
    "resolver",
    [
        pytest.param("json", id="not-callable"),
        pytest.param(failing_resolver, id="raises"),
        pytest.param(lambda: None, id="returns-nothing"),
        pytest.param(lambda: object, id="returns-a-plain-class"),
        pytest.param(lambda: SpooledArtifact(InMemoryReader("")), id="returns-an-instance"),
    ],
)
def test_promise_017_resolver_is_checked_when_the_tool_is_built(resolver: Any) -> None:
    with pytest.raises(InvalidInitialToolValue) as caught:
        tool("fetch", returning("{}"), artifact_constructor=resolver)

    assert caught.value.code == "E_INVALID_INITIAL_TOOL_VALUE"
    assert isinstance(caught.value.cause, ValidationException)
    assert [found["path"] for found in caught.value.cause.details] == [["artifact_constructor"]]


# One interpreter without any gateway module is forked once per module. The package's own `__init__` imports most
# modules in one order; an empty package in its place makes each module stand alone.
IMPORT_ALONE = """
import importlib, os, sys, traceback, types
import aiohttp, alembic.config, asyncio, casbin, cryptography.hazmat.primitives.serialization, hmac, json5, jwt
import jsonpath, jsonschema_rs, lxml.etree, markdown_it, orjson, pydantic_settings, re2, rich.console, secrets
import sqlalchemy.dialects.sqlite, starlette.routing, tree_sitter, typer, uuid, uvicorn, yaml
broken = []
for name in sys.argv[2:]:
    if child := os.fork():
        broken += [name] if os.waitpid(child, 0)[1] else []
        continue
    try:
        assert not any(loaded.partition(".")[0] == "gateway" for loaded in sys.modules)
        if name != "gateway":
            sys.modules["gateway"] = types.ModuleType("gateway")
            vars(sys.modules["gateway"]).update(__path__=[sys.argv[1]], __version__="0")
        importlib.import_module(name)
    except BaseException:
        print(name, traceback.format_exc(), flush=True)
        os._exit(1)
    os._exit(0)
sys.exit(bool(broken))
"""


def modules() -> dict[str, Path]:
    files = sorted((ROOT / "gateway").rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def find_imports(name: str, known: Mapping[str, Path]) -> set[str]:
    """Return the modules that one imports; an `__init__` above it may import it in turn."""
    found: set[str] = set()
    for each in ast.parse(known[name].read_text(encoding="utf-8")).body:
        if isinstance(each, ast.Import):
            found |= {alias.name for alias in each.names}
        elif isinstance(each, ast.ImportFrom) and each.module is not None:
            both = [(f"{each.module}.{alias.name}", each.module) for alias in each.names]
            found |= {module if module in known else parent for module, parent in both}
    above = {each.rpartition(".")[0] for each in found} - {"gateway"}
    return {each for each in (found | above) & known.keys() if each != name and not name.startswith(f"{each}.")}


def test_no_module_needs_itself_to_be_imported() -> None:
    known = modules()

    TopologicalSorter({name: find_imports(name, known) for name in known}).prepare()  # raises for a circle

    assert len(known) > 20


def test_promise_018_every_module_imports_alone_in_a_fresh_interpreter() -> None:
    """The whole core, and every module that no other one imports: without cycles, these import the rest."""
    known = modules()
    on_the_way = set().union(*(find_imports(name, known) for name in known))
    names = [name for name in known if name.startswith("gateway.model") or name not in on_the_way]

    command = [sys.executable, "-c", IMPORT_ALONE, str(ROOT / "gateway"), *names]
    run = subprocess.run(command, capture_output=True, text=True)

    assert len(names) > 20
    assert run.returncode == 0, run.stdout + run.stderr


def test_promise_019_a_media_class_is_no_artifact_constructor() -> None:
    with pytest.raises(InvalidInitialToolValue) as caught:
        tool("fetch", returning("{}"), artifact_constructor=lambda: Media)

    assert caught.value.code == "E_INVALID_INITIAL_TOOL_VALUE"


@pytest.mark.parametrize("content", ['{"a":1}', b'{"a":1}'], ids=["text", "bytes"])
async def test_promise_020_constructor_decides_how_text_and_bytes_are_wrapped(content: str | bytes) -> None:
    tools = [
        tool("as_json", returning(content), artifact_constructor=lambda: SpooledJsonArtifact),
        tool("as_text", returning(content)),
    ]

    seen = await play(tools, [call("json", "as_json"), call("text", "as_text")], inline=False)

    assert type(seen.record("json").results) is SpooledJsonArtifact
    assert type(seen.record("text").results) is SpooledArtifact
    assert "kind: SpooledJsonArtifact" in seen.shown("json")
    assert "kind: SpooledArtifact" in seen.shown("text")


async def test_promise_021_media_bypasses_the_wrap_and_lands_untouched() -> None:
    picture = media(id="picture-1")
    draw = tool("draw", returning(picture), artifact_constructor=lambda: SpooledJsonArtifact)

    seen = await play([draw], [call("c", "draw")])

    assert seen.record("c").results is picture
    assert picture.id == "picture-1"
    assert await seen.spool.read("c") is None
    assert set(seen.offered()) == {"draw"}


MEDIA_FIELDS: dict[str, Any] = {
    "kind": "image",
    "mime_type": "image/png",
    "filename": "a.png",
    "trust_tier": "first-party",
    "modality_hazard": "inert",
    "reader": InMemoryMediaReader(b""),
}


@pytest.mark.parametrize("field", ["kind", "mime_type", "filename", "trust_tier", "modality_hazard"])
async def test_promise_022_media_needs_kind_type_name_tier_and_hazard(field: str) -> None:
    fields = {name: value for name, value in MEDIA_FIELDS.items() if name != field}

    seen = await play([tool("draw", lambda args, ctx, meta: Media(**fields))], [call("c", "draw")])

    assert seen.record("c").is_error
    assert Media.is_media(Media(**MEDIA_FIELDS))
    with pytest.raises(InvalidInitialMediaValue) as caught:
        Media(**fields)
    assert isinstance(caught.value.cause, ValidationException)
    assert [found["path"] for found in caught.value.cause.details] == [[field]]


async def test_promise_023_line_text_and_byte_streams_are_disjoint() -> None:
    picture = media(id="picture-1")
    tools = [tool("write", returning("line")), tool("draw", returning(picture))]

    seen = await play(
        tools,
        [call("text", "write"), call("media", "draw")],
        [call("q1", "artifact_head", callId="media"), call("q2", "artifact_head", callId="picture-1")],
    )

    assert set(seen.offered()) == {"write", "draw", *BASE_SEVEN}
    assert seen.selectable("artifact_head") == ["text"]
    assert [seen.record(id).is_error for id in ("q1", "q2")] == [True, True]
    assert "artifact_head" not in [event.tool_name for event in seen.named("toolExecutionStart")]
    with pytest.raises(NotASpoolReader):
        SpooledArtifact(picture.reader)  # type: ignore[arg-type]  # what the test is about
    with pytest.raises(InvalidInitialMediaValue):
        media(reader=InMemoryReader("line"))
