"""`gateway schema`: the JSON Schema for editors."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.output import fail, print_document, print_line, stdout
from gateway.config import build_editor_schema


def print_schema(
    write: Annotated[Path | None, typer.Option(help="Write it to this file instead of printing it.")] = None,
) -> None:
    """Print the JSON Schema of all kinds, for editors."""
    text = json.dumps(build_editor_schema(), indent=2, ensure_ascii=False) + "\n"
    if write is None:
        print_document(text, is_json=True)
        return
    try:
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{write} cannot be written: {(error.strerror or 'unknown reason').lower()}", code=1)
    print_line(stdout(), f"wrote {write}")
