"""Commands that answer from the gateway itself: the editor schema."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gateway.config.schema import editor_schema


def print_schema(
    write: Annotated[Path | None, typer.Option(help="Write it to this file instead of printing it.")] = None,
) -> None:
    """Print the JSON Schema of all kinds, for editors."""
    text = json.dumps(editor_schema(), indent=2, ensure_ascii=False) + "\n"
    if write is None:
        typer.echo(text, nl=False)
        return
    try:
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"{write} cannot be written: {error.strerror}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"wrote {write}")
