"""Operations of a document, each as the definition of a tool: name, description, schemas and the request it becomes."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, Final

from gateway.openapi.answers import accepted, artifact_of, output_schema
from gateway.openapi.parameters import Arguments, Key, arguments_of
from gateway.openapi.pointers import Pointers, shown
from gateway.openapi.reading import Document
from gateway.openapi.refusals import Unusable
from gateway.openapi.requests import METHODS, Method, Request
from gateway.openapi.schemas import Schemas
from gateway.openapi.security import SecurityScheme, security_schemes, wanted_schemes
from gateway.openapi.texts import prose, slug
from gateway.openapi.writing import placeholders

MAX_OPERATIONS: Final = 10_000
_INPUT_BUDGET: Final = 8_000
_OUTPUT_BUDGET: Final = 500
_PATH: Final = re.compile(r"/(?!/)[^?#\s\\\x00-\x1f\x7f]{0,500}")
_DOTS: Final = re.compile(r"(?:^|/)\.{1,2}(?:/|$)")


@dataclass(frozen=True, slots=True)
class Found:
    """An operation where it stands, not looked into yet."""

    name: str
    method: Method
    path: str
    tags: tuple[str, ...]
    operation: Mapping[str, Any] = field(repr=False)
    item: Any = field(repr=False)

    @property
    def operation_id(self) -> str | None:
        """As the document writes it."""
        found = self.operation.get("operationId")
        return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as a tool. `artifact` reads its answers; `media` is their type if they are pictures or sound."""

    name: str
    title: str | None
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    request: Request
    artifact: str
    media: str | None = None
    deprecated: bool = False
    wants: tuple[str, ...] = ()
    """Security schemes of which one is wanted."""


def found_operations(document: Document) -> Iterator[Found]:
    """Every operation with a name of its own, in the order of the document."""
    pointers = Pointers(document.root)
    taken: set[str] = set()
    for path, reference in document.paths.items():
        try:
            item = pointers.followed(reference)
        except Unusable:
            yield Found(_name({}, "GET", path, taken), "GET", path, (), {}, reference)  # told when it is looked into
            continue
        for method in METHODS:
            operation = item.get(method.lower())
            if isinstance(operation, dict):
                name = _name(operation, method, path, taken)
                taken.add(name.lower())
                yield Found(name, method, path, _tags(operation), operation, item)


class Operations:
    """Makes definitions, sharing what they have in common."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._pointers = Pointers(document.root)
        self._inputs = Schemas(self._pointers, document.version, "input")
        self._outputs = Schemas(self._pointers, document.version, "output")
        self._schemes = security_schemes(document.root, self._pointers)

    @property
    def schemes(self) -> Mapping[str, SecurityScheme]:
        return self._schemes

    def operation(self, found: Found) -> Operation:
        """Raises `Unusable`."""
        if not _PATH.fullmatch(found.path) or _DOTS.search(found.path):
            raise Unusable("its path is not a plain path from the root")
        item = self._pointers.followed(found.item)
        arguments = arguments_of(
            found.operation, item, pointers=self._pointers, schemas=self._inputs, given=self._given()
        )
        _check_placeholders(found.path, arguments)
        responses = found.operation.get("responses")
        content = accepted(responses, self._pointers)
        artifact, media = artifact_of(content)
        request = Request(found.method, found.path, tuple(arguments.parameters), arguments.body, content.accept)
        return Operation(
            found.name,
            prose(found.operation.get("summary"), limit=200).replace("\n", " ") or None,
            _description(found),
            self._inputs.complete(arguments.schema(), budget=_INPUT_BUDGET),
            output_schema(content, self._outputs, budget=_OUTPUT_BUDGET),
            request,
            artifact,
            media,
            deprecated=found.operation.get("deprecated") is True,
            wants=wanted_schemes(found.operation, self._document.root, self._schemes),
        )

    def _given(self) -> Collection[Key]:
        return {each.parameter for each in self._schemes.values() if each.parameter is not None}


def _name(operation: Mapping[str, Any], method: Method, path: str, taken: Collection[str]) -> str:
    """From the operation's id; without one, or where it is taken, from method and path."""
    given = operation.get("operationId")
    by_place = slug(f"{method.lower()} {path}")
    numbered = (slug(f"{by_place}_{number}") for number in count(2))
    candidates = chain([slug(given)] if isinstance(given, str) else [], [by_place], numbered)
    return next(each for each in candidates if each and each.lower() not in taken)


def _tags(operation: Mapping[str, Any]) -> tuple[str, ...]:
    tags = operation.get("tags")
    return tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()


def _description(found: Found) -> str:
    summary, description = (prose(found.operation.get(key)) for key in ("summary", "description"))
    texts: Sequence[str] = [summary, "" if description == summary else description]
    told = "\n\n".join(filter(None, texts)) or f"{found.method} {prose(found.path, limit=200)}"
    return f"Deprecated. {told}" if found.operation.get("deprecated") is True else told


def _check_placeholders(path: str, arguments: Arguments) -> None:
    declared = {each.name for each in arguments.parameters if each.place == "path"}
    named = placeholders(path)
    for name in named:
        if name not in declared:
            raise Unusable(f"the path has a placeholder {shown(name)} without a parameter")
    if unused := declared - set(named):
        raise Unusable(f"the path has no placeholder for its parameter {shown(min(unused))}")
    if re.search(r"[{}]", re.sub(r"\{[^{}/]+\}", "", path)):
        raise Unusable("the path has a brace that is not part of a placeholder")
