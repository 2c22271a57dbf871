"""The settings of a document as they are written: a value from the environment stays the reference in the file."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.registries import DeclaredDocument
from gateway.review.plan.builder import PlanInput
from gateway.review.plan.document_changes import AbsentValue, SourceValues


@dataclass(frozen=True, slots=True)
class WrittenSetting:
    """One leaf of a document: its path below `spec`, and its value in one line."""

    path: str
    value: str


def read_spec(project: PlanInput, document: DeclaredDocument) -> Mapping[str, Any]:
    """Return the `spec` of a document as written, with references instead of values of the environment."""
    texts = project.texts.get((document.kind, document.name)) or SourceValues(document.data)
    found = texts.at(("spec",))
    return {} if isinstance(found, AbsentValue) else dict(found)


def list_settings(project: PlanInput, document: DeclaredDocument) -> tuple[WrittenSetting, ...]:
    return tuple(_leaves(read_spec(project, document), ""))


def _leaves(value: Any, path: str) -> Iterator[WrittenSetting]:
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{path}[{index}]")
    else:
        yield WrittenSetting(path, format_setting(value))


def format_setting(value: Any) -> str:
    """Return a value in one line: texts as they are, lists with commas, everything else as JSON."""
    match value:
        case str():
            return value
        case list() | tuple():
            return ", ".join(map(format_setting, value)) or "none"
        case True:
            return "yes"
        case False:
            return "no"
    return json.dumps(value, default=str, ensure_ascii=False)
