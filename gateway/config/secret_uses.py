"""Where documents name secrets: the variable or the file that holds each, and the place that asks for it.

Documents are looked at as they were read, so that one with a problem elsewhere still tells what it needs. No secret
is read here.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from gateway.config.nodes import Document, Path
from gateway.governance.diagnostics import Position

_NO_SECRETS_BELOW: Final = frozenset({"annotations", "labels", "schema", "resolution", "keys"})
"""Free text, JSON Schemas, and key sets, which are public."""


@dataclass(frozen=True, slots=True)
class SecretUse:
    """A place that asks for a secret. `name` is the variable or, if `is_file`, the path as it was written."""

    name: str
    is_file: bool
    position: Position


def secret_uses(documents: Iterable[Document]) -> Iterator[SecretUse]:
    for document in documents:
        for path, name in _references(document.data, ()):
            yield SecretUse(name, path[-1] == "fromFile", document.position(path))


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
