"""`gateway call-id`: the checksum of a call."""

import sys
from typing import Annotated

import typer

from gateway.cli.output import fail, print_document
from gateway.model import call_id, canonical
from gateway.server import strict_json


def print_call_id(
    tool: Annotated[str, typer.Argument(help="The tool's name.")],
    args: Annotated[str, typer.Argument(help="The arguments as a JSON object, or - to read it from standard input.")],
    show: Annotated[bool, typer.Option("--canonical", help="Print the canonical JSON that is hashed instead.")] = False,
) -> None:
    """Print the checksum of a call: the hash of a tool's name and arguments, the same for every such call.

    Responses and records call it `checksum`, the envelope of a result `call`. It is not the `callId` that gateway calls
    show and gateway trace take.
    """
    text = sys.stdin.read() if args == "-" else args
    try:
        value = strict_json(text.encode("utf-8", "surrogateescape"))
        if not isinstance(value, dict):
            raise ValueError(f"a JSON object is needed, not {type(value).__name__}")
        answer = canonical({"tool": tool, "args": value}) if show else call_id(tool, value)
    except ValueError as error:
        fail(f"the arguments cannot be read: {error}", "write a JSON object: '{\"amount\": 900}'")
    print_document(answer)
