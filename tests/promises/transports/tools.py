"""Tools that keep the model's promises, or try not to. They record their effects in `done`, for tests in the same
process.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

from gateway import (
    CallerCannotAnswer,
    InMemoryMediaReader,
    InMemoryReader,
    Media,
    OpenedMediaReader,
    Question,
    SpooledArtifact,
    ToolMethod,
    ask_caller,
    report_progress,
)
from gateway.errors import ToolError


class Done:
    """Effects since the start of the test."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.counted = 0
        self.paid: list[float] = []
        self.fetched = 0
        self.seen: list[dict[str, Any]] = []
        self.began = asyncio.Event()
        self.goes_on = asyncio.Event()


done = Done()


class Repeating(SpooledArtifact):
    """Lists a query that the base class has, twice."""

    tool_methods: ClassVar = (
        ToolMethod("artifact_head", "head", "Returns its first lines, again."),
        ToolMethod("artifact_head", "head", "Returns its first lines, and again."),
    )


class Ledger(SpooledArtifact):
    """Numbers, one per line. One of its queries breaks the rule that answers are text."""

    tool_methods: ClassVar = (
        ToolMethod("artifact_ledger_sum", "total", "Returns the sum of its lines."),
        ToolMethod("artifact_ledger_raw", "raw", "Returns bytes.", serialise=lambda answer: answer),
    )

    async def total(self) -> str:
        return str(sum(int(line) for line in await self.cat()))

    async def raw(self) -> bytes:
        return b"\x00"


def echo(args: dict[str, Any], ctx: Any, meta: Any) -> str:
    done.seen.append(args)
    return "heard"


def say(text: str) -> str:
    return text


def defaulted(size: str, count: int) -> str:
    done.seen.append({"size": size, "count": count})
    return f"{count} {size}"


def report(lines: int) -> str:
    return "".join(f"line {number}\n" for number in range(lines))


def facts() -> dict[str, Any]:
    return {"name": "kim", "tags": ["a", "b"]}


def page() -> str:
    return "# Title\n\ntext\n\n## Part\n\nmore\n"


def raw() -> bytes:
    return bytes(range(256))


def staff() -> dict[str, Any]:
    return {"name": "kim", "password": "hunter2", "office": "a room with a long name to be over the limit"}


def ledger() -> str:
    return "1\n2\n39"


def several() -> list[SpooledArtifact]:
    return [SpooledArtifact(InMemoryReader(b"first one")), SpooledArtifact(InMemoryReader(b"second one"))]


def made_artifact() -> SpooledArtifact:
    return SpooledArtifact(InMemoryReader(b"made by hand"))


def picture() -> Media:
    reader = InMemoryMediaReader(b"\x89PNG own")
    return Media.tool_generated("image", mime_type="image/png", filename="own.png", reader=reader)


def pictures() -> list[Media]:
    return [picture(), picture()]


def found_picture() -> Media:
    reader = InMemoryMediaReader(b"\x89PNG found")
    return Media.retrieved_public("image", mime_type="image/png", filename="found.png", reader=reader)


def nameless_picture() -> Media:
    return Media.tool_generated("image", mime_type="image/png", filename="", reader=InMemoryMediaReader(b"x"))


def distant_picture() -> Media:
    """Its bytes are remote, and each fetch is counted."""

    def fetched() -> Iterator[bytes]:
        done.fetched += 1
        return iter([b"\x89PNG ", b"distant"])

    reader = OpenedMediaReader(fetched, 12)
    return Media.tool_generated("image", mime_type="image/png", filename="distant.png", reader=reader)


def inert_papers() -> list[Media]:
    """As trusted as media can be."""
    fields: dict[str, Any] = {"kind": "document", "mime_type": "text/plain", "filename": "own.txt"}
    stash = {"text:caption": {"value": "Our own words", "trust_tier": "first-party"}}
    return [
        Media(
            **fields,
            reader=InMemoryMediaReader(b"own words"),
            trust_tier="first-party",
            modality_hazard="inert",
            stash=stash,
        )
        for _ in range(2)
    ]


def chart() -> bytes:
    return b"\x89PNG chart"


def paper() -> bytes:
    return b"%PDF-1.7\nthe word is sesame\n%%EOF"


def broken() -> str:
    raise RuntimeError("the password of the database is 1234")


def refuses() -> str:
    raise ToolError("there is no such customer", help="ask for another one")


def shapeless() -> Any:
    return {"not": "text"}


def count() -> str:
    done.counted += 1
    return f"{done.counted}"


async def wait() -> str:
    done.began.set()
    await done.goes_on.wait()
    return "waited"


def pay(amount: float) -> str:
    done.paid.append(amount)
    return "paid"


async def gated(args: dict[str, Any], ctx: Any, meta: Any) -> str:
    """Wait until a watcher of the turn opens the gate."""
    answer = await ctx.wait_for({"id": "g1", "reason": "it costs", "payload": {"sum": 1}, "timeout": args["patience"]})
    done.paid.append(1)
    return f"let through by {answer}"


async def asks() -> str:
    """Wait for the user of the client."""
    question = Question.form("Go on?", {"type": "object", "properties": {"sure": {"type": "boolean"}}})
    try:
        answer = (await ask_caller(go_on=question))["go_on"]
    except CallerCannotAnswer:
        return "nobody to ask"
    if answer["action"] != "accept":
        return "left alone"
    done.paid.append(2)
    return "done"


def remember(args: dict[str, Any], ctx: Any, meta: Any) -> str:
    ctx.stash.set(args["key"], args["value"])
    return f"{ctx.stash.get(args['key'])}"


def recall(args: dict[str, Any], ctx: Any, meta: Any) -> str:
    return f"{ctx.stash.get(args['key'], 'nothing')}"


def scopes(args: dict[str, Any], ctx: Any, meta: Any) -> str:
    return f"{meta.get('rbac.scopes')} {meta.get('rbac.owner', 'nobody')}"


def drops_tool(args: dict[str, Any], ctx: Any, meta: Any) -> str:
    """Edits the tools of its dispatch."""
    ctx.tools.unregister("say")
    return f"{ctx.tools.has('say')}"


def checked(args: dict[str, Any], ctx: Any, meta: Any) -> str:
    done.seen.append(args)
    return "ran"


async def steps() -> str:
    for step in (1, 2, 3):
        report_progress(step, 3, message=f"step {step}")
        await asyncio.sleep(0)
    return "walked"
