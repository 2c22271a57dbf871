"""Commands that are imported when they are run: `--help`, `--version` and small commands start at once.

What the list of commands needs (a name and one line) is written down where the command is registered.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A command by the place of its function, or of its `typer.Typer` if it has subcommands: `module:name`."""

    name: str
    place: str
    summary: str


class _Deferred(TyperCommand):
    """Stands in the list of commands for one that is not imported yet."""

    def __init__(self, subcommand: Subcommand) -> None:
        super().__init__(name=subcommand.name, help=subcommand.summary)
        self._subcommand = subcommand

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The real command's context: whoever goes on does so with the command that the context names."""
        return loaded(self._subcommand).make_context(info_name, args, parent, **extra)


class LazyGroup(TyperGroup):
    """Lists `subcommands` without importing them. A subclass says which ones there are."""

    subcommands: ClassVar[tuple[Subcommand, ...]] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for subcommand in self.subcommands:
            self.add_command(_Deferred(subcommand))


def loaded(subcommand: Subcommand) -> TyperCommand | TyperGroup:
    module, _, name = subcommand.place.partition(":")
    found = getattr(import_module(module), name)
    app = found if isinstance(found, typer.Typer) else _app_of(found)
    command = get_command(app)
    assert isinstance(command, TyperCommand | TyperGroup)  # noqa: S101 - typer makes no others
    command.name = subcommand.name
    return command


def _app_of(function: Any) -> typer.Typer:
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return app
