"""Checked documents by kind and name, each with the positions that its problems are told at."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, Generic, TypeVar

from gateway.config.nodes import Document as Source
from gateway.config.nodes import Path
from gateway.config.specs.common import Document
from gateway.governance.diagnostics import Diagnostic, Position, Severity

D = TypeVar("D", bound=Document)

_NAME: Final = ("metadata", "name")


@dataclass(frozen=True, slots=True)
class Entry(Generic[D]):
    """One document: what it says and where it says it."""

    name: str
    document: D
    source: Source

    @property
    def position(self) -> Position:
        """Where its name stands: what other things call the place it is declared at."""
        return self.at("metadata", "name")

    def at(self, *path: str | int) -> Position:
        return self.source.position(path)

    def has(self, *path: str | int) -> bool:
        return path in self.source.positions

    def problem(
        self,
        code: str,
        message: str,
        path: Path,
        *,
        help: str | None = None,
        severity: Severity = "error",
        related: Sequence[tuple[str, Position]] = (),
    ) -> Diagnostic:
        """A problem at the token that stands for a path. Nothing that the environment put there is repeated."""
        hidden = self._hidden(path)
        told = (
            _without(message, hidden) or "the value does not fit here; it comes from the environment and is not shown"
        )
        return Diagnostic(code, told, self._token(path), severity, help and _without(help, hidden), related)

    def _token(self, path: Path) -> Position:
        """The value; of a mapping or a list, and of what is not there, the key in front of it."""
        is_scalar = path in self.source.positions and not isinstance(_value(self.source.data, path), dict | list)
        return self.source.position(path) if is_scalar else self.source.key_position(path)

    def _hidden(self, path: Path) -> list[str]:
        """What the environment put there. A document's name is no secret: everything else speaks of it."""
        places = [each for each in self.source.substituted if each[: len(path)] == path and each != _NAME]
        return [str(_value(self.source.data, each)) for each in places]


@dataclass(frozen=True, slots=True)
class Entries:
    """Everything there is to link. `names` also has the documents whose shape is wrong; then it is not complete."""

    documents: Sequence[Entry[Document]]
    names: Mapping[str, frozenset[str]]
    is_complete: bool
    today: date

    def of(self, model: type[D]) -> dict[str, Entry[D]]:
        """The documents of one kind, the first of each name."""
        found: dict[str, Entry[D]] = {}
        for entry in self.documents:
            if isinstance(entry.document, model):
                found.setdefault(entry.name, Entry(entry.name, entry.document, entry.source))
        return found

    def only(self, model: type[D]) -> Entry[D] | None:
        return next(iter(self.of(model).values()), None)


def entries(
    checked: Iterable[tuple[Document, Source]], *, names: Mapping[str, frozenset[str]], is_complete: bool, today: date
) -> Entries:
    return Entries(
        [Entry(_name(source.data), document, source) for document, source in checked], names, is_complete, today
    )


def _name(data: Mapping[str, Any]) -> str:
    name: str = data["metadata"]["name"]
    return name


def _without(text: str, hidden: Iterable[str]) -> str | None:
    """The text with other words for hidden values that it quotes; `None` if it still repeats one."""
    for value in hidden:
        text = text.replace(repr(value), "(from the environment, not shown)")
        if value in text:
            return None
    return text


def _value(data: Any, path: Path) -> Any:
    for step in path:
        data = data[step]
    return data
