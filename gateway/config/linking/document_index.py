"""An index of checked documents by kind and name, with the positions at which problems are reported."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final, Generic, TypeVar

from gateway.config.kinds.common_specs import DocumentModel
from gateway.config.yaml.document import DocumentPath
from gateway.config.yaml.document import YamlDocument as Source
from gateway.registries import Diagnostic, Position, Severity

D = TypeVar("D", bound=DocumentModel)

_NAME: Final = ("metadata", "name")


@dataclass(frozen=True, slots=True)
class DocumentEntry(Generic[D]):
    """One document and its source."""

    name: str
    document: D
    source: Source

    @property
    def position(self) -> Position:
        """The position of its name, which other diagnostics show as the place of the declaration."""
        return self.position_at("metadata", "name")

    def position_at(self, *path: str | int) -> Position:
        return self.source.position(path)

    def has(self, *path: str | int) -> bool:
        return path in self.source.positions

    def problem(
        self,
        code: str,
        message: str,
        path: DocumentPath,
        *,
        help: str | None = None,
        severity: Severity = "error",
        related: Sequence[tuple[str, Position]] = (),
    ) -> Diagnostic:
        """Return a problem at the token of a path. Values from the environment are not quoted."""
        hidden = self._hidden_values(path)
        shown = (
            _redact(message, hidden) or "the value is not valid here; it comes from the environment and is not shown"
        )
        return Diagnostic(code, shown, self._token(path), severity, help and _redact(help, hidden), related)

    def _token(self, path: DocumentPath) -> Position:
        """Return the position of a scalar; for a mapping, a list or a missing value, that of its key."""
        is_scalar = path in self.source.positions and not isinstance(_value(self.source.data, path), dict | list)
        return self.source.position(path) if is_scalar else self.source.key_position(path)

    def _hidden_values(self, path: DocumentPath) -> list[str]:
        """Return the values from the environment at or below a path. A document's name is not hidden."""
        places = [each for each in self.source.substituted if each[: len(path)] == path and each != _NAME]
        return [str(_value(self.source.data, each)) for each in places]


@dataclass(frozen=True, slots=True)
class DocumentIndex:
    """The documents to link. `names` includes documents of invalid shape, which make the index incomplete."""

    documents: Sequence[DocumentEntry[DocumentModel]]
    names: Mapping[str, frozenset[str]]
    is_complete: bool
    today: date
    input_schemas: Mapping[str, dict[str, Any]]
    """Input schemas of Tool documents as they are enforced, by name, without those that do not compile."""
    _by_model: dict[type, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)

    def of(self, model: type[D]) -> Mapping[str, DocumentEntry[D]]:
        """Return the documents of one kind by name; the first of a duplicate name."""
        found = self._by_model.get(model)
        if found is None:
            found = self._by_model[model] = {}
            for entry in self.documents:
                if isinstance(entry.document, model):
                    found.setdefault(entry.name, entry)
        return found

    def get_single(self, model: type[D]) -> DocumentEntry[D] | None:
        return next(iter(self.of(model).values()), None)


def index_documents(
    checked: Iterable[tuple[DocumentModel, Source]],
    *,
    names: Mapping[str, frozenset[str]],
    is_complete: bool,
    today: date,
    input_schemas: Mapping[str, dict[str, Any]],
) -> DocumentIndex:
    entries = [DocumentEntry(_name(source.data), document, source) for document, source in checked]
    return DocumentIndex(entries, names, is_complete, today, input_schemas)


def _name(data: Mapping[str, Any]) -> str:
    name: str = data["metadata"]["name"]
    return name


def _redact(text: str, hidden: Iterable[str]) -> str | None:
    """Return the text without quoted hidden values, or `None` if it still contains one."""
    for value in hidden:
        text = text.replace(repr(value), "(from the environment, not shown)")
        if value in text:
            return None
    return text


def _value(data: Any, path: DocumentPath) -> Any:
    for step in path:
        data = data[step]
    return data
