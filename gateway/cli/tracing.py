"""`gateway trace`: one call as a tree, from the records of the project's own store."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from gateway.cli.call_trees import Node, turns_of
from gateway.cli.console import fail, out, print_json
from gateway.cli.project import (
    DEFAULT_FOLDER,
    Environment,
    Policies,
    ProjectFolder,
    assembled,
    project_at,
    secrets_of,
    sound,
)
from gateway.config.report_text import visible
from gateway.errors import GatewayError
from gateway.runtime.looking import project_trace

_COLOURS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ok", "allow", "granted", "grant", "used"), "green"),
    **dict.fromkeys(("hold", "pending", "started"), "cyan"),
    **dict.fromkeys(("deny", "error", "refused", "refuse", "expired", "void", "cancelled"), "yellow"),
    "unknown": "bold red",
}
_WORDS: Final[Mapping[str, str]] = {"startOnRecord": "start on record"}
_IS_NAMED_BY_ITSELF: Final = frozenset({"reason"})


def trace_call(
    id: Annotated[str, typer.Argument(metavar="CALL_ID", help="The call's id.")],
    turn: Annotated[
        str | None, typer.Option(help="Its turn, if several have a call of that id.", show_default=False)
    ] = None,
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    output: Annotated[Literal["text", "json"], typer.Option(help="For people, or for programs.")] = "text",
) -> None:
    """Draw one call: its turn, what was decided by which rule, who approved it, and how its backend did.

    A call that was held is drawn with the one that went on with it. Everything is from the local records, so that it is
    there whether or not a trace was sent; `traceId` finds that in a tracing backend.
    Exit codes: 0 drawn, 1 there is no such call or its store cannot be read, 2 wrong use.
    """
    project = project_at(folder, policies)
    found = sound(assembled(project, environment=environment, today=None), project)
    try:
        traced = project_trace(found, secrets_of(folder, policies), id, turn_id=turn)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    if traced is None:
        where = "" if turn is None else f" in turn {turn!r}"
        fail(f"there is no call {id!r}{where}", "gateway calls list shows which ones there are", code=1)
    assert found.access is not None, "a sound project has one"  # noqa: S101 - `sound` ends the command otherwise
    turns = turns_of(traced, found.access.snapshot)
    if output == "json":
        print_json([each.as_data() for each in turns])
        return
    console = out()
    for each in turns:
        _draw(console, each)


def _draw(console: Console, node: Node) -> None:
    console.print(_grown(Tree(_line(node), guide_style="dim"), node))


def _grown(tree: Tree, node: Node) -> Tree:
    for child in node.children:
        _grown(tree.add(_line(child)), child)
    return tree


def _line(node: Node) -> Text:
    """Kind and name, how it went, how long it took, and what else there is to know."""
    line = Text.assemble((f"{node.kind} ", "dim"), (visible(node.name), "bold"))
    if node.outcome is not None and node.outcome != node.name:
        line.append("  ").append(visible(node.outcome), _COLOURS.get(node.outcome, ""))
    if node.took is not None:
        line.append(f"  {_duration(node.took)}", "magenta")
    if node.after is not None:
        line.append(f"  after {_duration(node.after)}", "dim")
    for name, value in node.details.items():
        if value not in (None, [], "") and not (name in _IS_NAMED_BY_ITSELF and value == node.name):
            line.append("  ").append(f"{_WORDS.get(name, name)} ", "dim").append(visible(_text(value)))
    return line


def _duration(milliseconds: float) -> str:
    if milliseconds < 10:
        return f"{milliseconds:.1f} ms"
    if milliseconds < 10_000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _text(value: Any) -> str:
    if value is True:
        return "yes"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
