"""`gateway call-id`: the checksum of a call, without any project."""

import sys
from typing import Annotated

import typer

from gateway.cli.console import fail, print_document
from gateway.core.canonical import call_id, canonical
from gateway.web.bodies import strict_json


def print_call_id(
    tool: Annotated[str, typer.Argument(help="The tool's name.")],
    args: Annotated[str, typer.Argument(help="The arguments as a JSON object, or - to read it from standard input.")],
    show: Annotated[bool, typer.Option("--canonical", help="Print the canonical JSON that is hashed instead.")] = False,
) -> None:
    """Print the checksum of a call: the hash of a tool's name and arguments, the same for every such call.

    Answers and records name it `checksum`, the envelope around a result `call`. It is not the `callId` of one call, by
    which gateway calls show and gateway trace find it.
    """
    text = sys.stdin.read() if args == "-" else args
    try:
        value = strict_json(text.encode("utf-8", "surrogateescape"))
        if not isinstance(value, dict):
            raise ValueError(f"a JSON object is needed, not {type(value).__name__}")
        answer = canonical({"tool": tool, "args": value}) if show else call_id(tool, value)
    except ValueError as error:
        fail(f"the arguments cannot be used: {error}", "write a JSON object: '{\"amount\": 900}'")
    print_document(answer)
