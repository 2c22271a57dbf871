"""Promises 86 to 102: what a tool is, what its handler may return, and what its flags, meta and stash do."""

import base64
import copy
import gc
import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest

from gateway import (
    DispatchContext,
    OpenedMediaReader,
    Renderer,
    Reporter,
    Schema,
    SpooledArtifact,
    SpooledJsonArtifact,
    SpooledMarkdownArtifact,
    Tokenizable,
    Tool,
    ToolRegistry,
    TurnContext,
    TurnRunner,
    definition,
    in_memory_callbacks,
)
from gateway.errors import InvalidInitialToolValue, ToolDownstreamError
from gateway.model.provider_formats import ProviderName
from gateway.model.turns.middleware_pipeline import Next
from tests.promises.scripted_model import (
    BASE_SEVEN,
    JSON_TOOLS,
    MARKDOWN_TOOLS,
    Seen,
    call,
    media,
    play,
    remembering,
    returning,
    tool,
)

pytestmark = pytest.mark.anyio

PROVIDERS: list[ProviderName] = ["openai", "anthropic", "gemini", "mcp"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_promise_086_model_sees_name_description_and_schema_only(provider: ProviderName) -> None:
    def a_telltale_handler(args: object, ctx: object, meta: object) -> str:
        return "a telltale result"

    plain = tool("t", returning(""))
    made = tool(
        "t",
        a_telltale_handler,
        meta={"scopes": ["a telltale scope"]},
        trusted=True,
        ephemeral=True,
        on_collision="replace",
        artifact_constructor=lambda: SpooledJsonArtifact,
    )

    assert definition(made, provider) == definition(plain, provider)
    assert "telltale" not in json.dumps(definition(made, provider))


@pytest.mark.parametrize("name", ["snake_case", "MixedCase", "kebab-case", "with space", "Überprüfung", "ns.tool/v1"])
async def test_promise_087_snake_case_is_recommended_and_not_enforced(name: str) -> None:
    seen = await play([tool(name, returning("done"))], [call("c", name)])

    assert not seen.record("c").is_error
    assert seen.record("c").tool == name


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(Schema({"type": "string"}), id="string"),
        pytest.param(Schema({"type": "array", "items": {"type": "object"}}), id="array"),
        pytest.param(Schema({"type": ["object", "null"]}), id="object-or-null"),
        pytest.param(Schema(True), id="anything"),
        pytest.param({"type": "object"}, id="look-alike"),
        pytest.param(str, id="class"),
    ],
)
def test_promise_088_schema_must_describe_an_object(schema: Any) -> None:
    with pytest.raises(InvalidInitialToolValue) as caught:
        Tool(name="t", description="A tool.", input_schema=schema, handler=returning(""))

    assert caught.value.code == "E_INVALID_INITIAL_TOOL_VALUE"


def test_promise_089_annotations_reach_the_definition() -> None:
    properties = {
        "size": {"type": "string", "description": "How large.", "enum": ["s", "m"], "default": "m"},
        "n": {"type": "integer", "minimum": 1, "examples": [1, 2], "title": "Amount", "$comment": "a note"},
    }
    schema = {"type": "object", "description": "An order.", "properties": properties, "required": ["n"]}

    parameters = definition(tool("t", returning(""), schema), "openai")["function"]["parameters"]

    assert parameters == {**schema, "additionalProperties": False}


async def test_promise_090_handler_is_not_reachable() -> None:
    def hidden_handler(args: object, ctx: object, meta: object) -> str:
        return "done"

    made = tool("t", hidden_handler)
    seen = await play([made], [call("c", "t")])

    public = [getattr(made, name) for name in dir(made) if not name.startswith("_")]
    assert all(value is not hidden_handler for value in public)
    assert not hasattr(made, "handler")
    assert not hasattr(made, "__dict__")
    texts = [repr(made), repr(made.describe()), repr(seen.events), repr(seen.records), str(seen.requests)]
    assert all("hidden_handler" not in text for text in texts)
    assert all(hidden_handler not in gc.get_referents(event) for event in seen.events)
    with pytest.raises(TypeError):
        pickle.dumps(made)
    assert copy.deepcopy(made) is made
    assert "done" in seen.shown("c")


async def test_promise_091_args_are_validated_first() -> None:
    handled: list[Any] = []
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    seen = await play(
        [tool("t", remembering(handled), schema)],
        [call("missing", "t"), call("text", "t", n="1"), call("unknown", "t", n=1, m=2)],
    )

    assert [record.is_error for record in seen.records] == [True] * 3
    assert handled == []
    assert seen.named("toolExecutionStart", "toolExecutionEnd") == []


async def test_promise_092_start_and_end_events_fire_once_each() -> None:
    seen = await play([tool("t", returning("the output"))], [call("c", "t", q="x")])

    (started,), (ended,) = seen.named("toolExecutionStart"), seen.named("toolExecutionEnd")
    assert (started.tool_name, started.args) == ("t", {"q": "x"})
    assert (ended.tool_name, ended.is_error, ended.started_at) == ("t", False, started.started_at)
    assert ended.duration_ms >= 0
    assert "the output" not in repr(ended.to_dict())


async def test_promise_093_handler_errors_are_wrapped() -> None:
    original = RuntimeError("the disk is full")
    raised: list[ToolDownstreamError] = []
    seen = Seen()

    async def fail(args: object, ctx: object, meta: object) -> str:
        raise original

    failing = tool("t", fail)

    async def step(ctx: DispatchContext, reporter: Reporter) -> None:
        with pytest.raises(ToolDownstreamError) as caught:
            await failing.executor(ctx)({})
        raised.append(caught.value)

    await play([failing], step, [call("c", "t")], seen=seen)

    (error,) = raised
    assert (error.code, error.status, error.fatal) == ("E_TOOL_DOWNSTREAM_ERROR", 500, False)
    assert error.cause is original
    assert "the disk is full" not in error.message
    assert seen.record("c").results == Tokenizable(f"{error.message}: the disk is full")
    assert seen.record("c").is_error
    assert [event.is_error for event in seen.named("toolExecutionEnd")] == [True, True]


@pytest.mark.parametrize("content", ["é\n", b"\xff\xfe\x00bytes", "", bytearray(b"ab")], ids=repr)
async def test_promise_094_text_and_bytes_are_spooled_in_the_base_class(content: str | bytes) -> None:
    seen = await play([tool("t", returning(content))], [call("c", "t")])

    results = seen.record("c").results
    stored = await seen.spool.read("c")
    raw = content.encode() if isinstance(content, str) else bytes(content)
    assert type(results) is SpooledArtifact
    assert stored is not None
    assert await results.byte_length() == len(raw)
    assert stored.read_range(0, len(raw) + 1) == raw


async def test_promise_095_artifact_tools_are_forged_for_the_result() -> None:
    seen = await play([tool("t", returning("text"))], [call("c", "t")], [call("q", "artifact_head", callId="c")])

    assert set(seen.offered(at=0)) == {"t"}
    assert set(seen.offered(at=1)) == {"t", *BASE_SEVEN}
    assert set(seen.offered(at=2)) == {"t", *BASE_SEVEN}
    assert seen.record("q").results == Tokenizable("text")


@contextmanager
def counting_server(content: bytes) -> Iterator[tuple[str, list[str]]]:
    """Run an HTTP server on loopback; yield its address and the path of every request."""
    fetched: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fetched.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/picture", fetched
        finally:
            server.shutdown()
            thread.join()


async def test_promise_096_media_bytes_stay_lazy() -> None:
    content = b"\x89PNG of a cat"
    before_rendering: list[int] = []

    with counting_server(content) as (address, fetched):

        def download() -> list[bytes]:
            with build_opener(ProxyHandler({})).open(address, timeout=5) as response:
                return [response.read()]

        async def look(ctx: DispatchContext, next: Next) -> None:
            before_rendering.append(len(fetched))
            await next()

        picture = media(reader=OpenedMediaReader(download))
        draw = tool("draw", returning(picture))
        seen = await play([draw], [call("c", "draw")], dispatch_input_pipeline=[look], dispatch_output_pipeline=[look])
        after_rendering = len(fetched)
        picture.to_json()

    assert before_rendering == [0, 0, 0]
    assert after_rendering == len(fetched) == 1
    data = base64.b64encode(content).decode()
    assert seen.blocks("c")[1] == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    assert all(data not in repr(event) and "of a cat" not in repr(event) for event in seen.events)


@pytest.mark.parametrize(
    ("content", "artifact_class", "expected"),
    [
        pytest.param('{"a":1}', SpooledJsonArtifact, JSON_TOOLS, id="json"),
        pytest.param("# Title", SpooledMarkdownArtifact, MARKDOWN_TOOLS, id="markdown"),
    ],
)
async def test_promise_097_json_and_markdown_tools_declare_their_class(
    content: str, artifact_class: type, expected: set[str]
) -> None:
    seen = await play([tool("t", returning(content), artifact_constructor=lambda: artifact_class)], [call("c", "t")])

    assert type(seen.record("c").results) is artifact_class
    assert set(seen.offered()) == {"t", *BASE_SEVEN, *expected}


async def test_promise_098_meta_offers_dotted_access_and_is_not_interpreted() -> None:
    read: list[Any] = []
    odd = {"rbac": {"scopes": ["admin"]}, "trusted": True, "ephemeral": True, "name": "x", "": None, "é": [{}]}

    async def look(ctx: TurnContext, next: Next) -> None:
        (found,) = ctx.tools.all()
        read.extend([found.meta.get("rbac.scopes"), found.meta.get("rbac.missing", "none"), found.meta.has("rbac")])
        await next()

    def handler(args: object, ctx: object, meta: Any) -> str:
        read.append(meta.get("rbac.scopes"))
        return "done"

    plain = await play([tool("t", returning("done"))], [call("c", "t")])
    seen = await play([tool("t", handler, meta=odd)], [call("c", "t")], turn_input_pipeline=[look])

    assert read == [["admin"], "none", True, ["admin"]]
    assert seen.requests[0] == plain.requests[0]
    assert set(seen.offered()) == set(plain.offered())
    assert seen.record("c").checksum == plain.record("c").checksum
    assert seen.shown("c").startswith("<untrusted_content_")


async def test_promise_099_three_flags_act_at_render_dispatch_end_and_merge() -> None:
    after_ack: list[str] = []
    made = tool("t", returning("text"), trusted=True, on_collision="replace")
    brief = tool("brief", returning("text"), ephemeral=True)

    async def add(ctx: DispatchContext, next: Next) -> None:
        ctx.tools.register(brief, overwrite=True)
        ctx.on_ack(lambda: after_ack.extend(tool.name for tool in ctx.tools.all()))
        await next()

    seen = await play([made], [call("c", "t")], dispatch_input_pipeline=[add])
    merged = ToolRegistry.merge([ToolRegistry([tool("t", returning("other"))]), ToolRegistry([made, brief])])

    assert seen.shown("c").startswith("<trusted_content_")
    assert "brief" in seen.offered()
    assert set(after_ack) == {"t"}
    assert merged.all() == [made, brief]


async def test_promise_100_stash_carries_a_text_fallback_for_media() -> None:
    stash = {"text:caption": {"value": "a cat <system_instructions>", "trust_tier": "first-party"}}
    clip = media("video", mime_type="video/mp4", filename="cat.mp4", stash=stash, id="m1")

    seen = await play(
        [tool("film", returning(clip))],
        [call("c", "film")],
        renderer=Renderer(unsupported_media="fallback-stash"),
    )

    marker, fallback = seen.blocks("c")
    assert marker == {"type": "text", "text": "[media id: m1 | cat.mp4]"}
    opener, body, closer = fallback["text"].splitlines()
    assert opener.startswith("<untrusted_content_")
    assert opener.endswith(' kind="media-fallback" modality="opaque">')
    assert body == "a cat &lt;system_instructions>"
    assert closer.startswith("</untrusted_content_")


async def test_promise_101_stash_is_dotted_per_turn_and_not_shared() -> None:
    found: list[Any] = []

    async def look(ctx: TurnContext, next: Next) -> None:
        found.append(ctx.stash.get("app.user"))
        ctx.stash.set("app.user.name", "ann")
        await next()

    def executor(ctx: DispatchContext, reporter: Reporter) -> None:
        found.append(ctx.stash.get("app.user.name"))
        ctx.stash.set("app.user.name", "changed in the dispatch")
        ctx.ack()

    async def look_again(ctx: TurnContext, next: Next) -> None:
        found.append(ctx.stash.get("app"))
        await next()

    pipelines = {"turn_input_pipeline": [look], "turn_output_pipeline": [look_again]}
    runner = TurnRunner({**in_memory_callbacks(), **pipelines, "executor": executor})
    initial = {"app": {"site": "eu"}}

    await runner.run({"system_prompt": "one", "stash": initial})
    await runner.run({"system_prompt": "two", "stash": initial})

    assert found == [None, "ann", {"site": "eu", "user": {"name": "ann"}}] * 2
    assert initial == {"app": {"site": "eu"}}


async def test_promise_102_an_artifact_is_queried_and_media_is_shown() -> None:
    pdf = b"%PDF-1.4\n(Invoice 4711)\n%%EOF"
    shown = media("document", pdf, mime_type="application/pdf", filename="invoice.pdf")
    tools = [tool("read", returning(pdf)), tool("show", returning(shown))]

    seen = await play(
        tools,
        [call("artifact", "read"), call("media", "show")],
        [call("q", "artifact_grep", callId="artifact", pattern=r"Invoice \d+")],
        inline=False,
    )

    assert seen.record("q").results == Tokenizable("(Invoice 4711)")
    assert seen.selectable("artifact_grep") == ["artifact"]
    assert [block["type"] for block in seen.blocks("artifact")] == ["text"]
    assert seen.blocks("media")[1] == {
        "type": "file",
        "file": {
            "filename": "invoice.pdf",
            "file_data": f"data:application/pdf;base64,{base64.b64encode(pdf).decode()}",
        },
    }
