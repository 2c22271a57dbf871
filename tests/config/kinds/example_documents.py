"""The example documents as plain data, read with only the four plain resolvers of YAML."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
FILES = (HERE / "example_documents.yaml", HERE / "variant_documents.yaml")

_PLAIN = ("null", "bool", "int", "float")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012 - pyyaml's own attribute
        first: [(tag, regexp) for tag, regexp in resolvers if tag.rpartition(":")[2] in _PLAIN]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.load_all(text, _Loader) if document]


def resolved(text: str) -> str:
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def label(document: dict[str, Any]) -> str:
    return f"{document['kind']}-{document['metadata']['name']}"


RAW = [document for file in FILES for document in read(file.read_text(encoding="utf-8"))]
"""Values as an editor sees them, with `${NAME:-default}` unresolved."""

DOCUMENTS = [document for file in FILES for document in read(resolved(file.read_text(encoding="utf-8")))]


def example(name: str) -> dict[str, Any]:
    """A copy of the example `Kind-name`, to be broken by a test."""
    return deepcopy(next(document for document in DOCUMENTS if label(document) == name))


def changed(name: str, path: str, value: Any) -> dict[str, Any]:
    """An example with one value replaced or added, by a dotted path with numbers for list entries."""
    document = example(name)
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    spot: Any = document
    for part in parents:
        spot = spot[part]
    spot[last] = value
    return document


def without(name: str, path: str) -> dict[str, Any]:
    """An example with one field left out."""
    document = example(name)
    *parents, last = path.split(".")
    spot: Any = document
    for part in parents:
        spot = spot[int(part) if part.isdigit() else part]
    del spot[last]
    return document
