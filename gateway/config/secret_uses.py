"""Where documents name secrets: the variable or the file that holds each, and the place that asks for it.

Documents are looked at as plain data, so that one with a problem elsewhere still tells what it needs. No secret is
read here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.config.nodes import Document, Path
from gateway.governance.diagnostics import Position

_NO_SECRETS_BELOW: Final = frozenset({"annotations", "labels", "schema", "resolution", "keys"})
"""Free text, JSON Schemas, and key sets, which are public."""

_PARTS: Final[Mapping[str, str]] = {"IdentityProvider": "identity", "Storage": "storage", "Telemetry": "telemetry"}
"""Kinds of which only those count that the Gateway names, and the field that names them."""

_NOT_CALLED: Final = frozenset({"draft", "retired"})
"""Stages in the life of a tool."""


@dataclass(frozen=True, slots=True)
class SecretUse:
    """A place that asks for a secret. `name` is the variable or, if `is_file`, the path; `written` is how it stands."""

    name: str
    is_file: bool
    position: Position
    written: str


def secret_uses(documents: Iterable[Document]) -> Iterator[SecretUse]:
    for document in documents:
        for path, name in _references(document.data, ()):
            written = document.written.get(path, name)
            yield SecretUse(name, path[-1] == "fromFile", document.position(path), written)


def in_use(documents: Sequence[Document]) -> list[Document]:
    """Without parts that the Gateway does not name, and without tools that nobody can call."""
    gateways = _gateways(documents)
    return [document for document in documents if _is_in_use(document, gateways)]


def _gateways(documents: Iterable[Document]) -> list[dict[str, Any]]:
    specs = [document.data.get("spec") for document in documents if document.data.get("kind") == "Gateway"]
    return [spec for spec in specs if isinstance(spec, dict)]


def _is_in_use(document: Document, gateways: Sequence[dict[str, Any]]) -> bool:
    match document.data:
        case {"kind": "Tool", "spec": {"lifecycle": str(lifecycle)}}:
            return lifecycle not in _NOT_CALLED
        case {"kind": str(kind), "metadata": {"name": str(name)}} if kind in _PARTS and gateways:
            return any(name in _names(gateway.get(_PARTS[kind])) for gateway in gateways)
    return True


def _names(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _references(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    match value:
        case {"fromEnv": str(name), **others} if not others:
            yield (*path, "fromEnv"), name
        case {"fromFile": str(name), **others} if not others:
            yield (*path, "fromFile"), name
        case dict():
            for key, below in value.items():
                if key not in _NO_SECRETS_BELOW:
                    yield from _references(below, (*path, key))
        case list():
            for index, below in enumerate(value):
                yield from _references(below, (*path, index))
