"""Converts YAML to JSON values and back, by PyYAML.

Values are built from the parser's events: its node tree takes half a kilobyte per scalar and is built by
recursion. Tags other than YAML's own, aliases that multiply, nesting past the limit and keys that are not
scalars are refused. Values that JSON does not have become text: dates in ISO form, `.nan` and `.inf` as
written, and keys. Scalars are those of YAML 1.1, as PyYAML reads them.

Needs PyYAML; `yaml_artifact` imports this module on first use.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import ScalarNode
from yaml.resolver import Resolver

from gateway.artifacts.formats.document_artifact import MAX_DEPTH, check_depth, depth_error, truncate
from gateway.artifacts.indexed_reader import encode_utf8
from gateway.errors import YamlParseError
from gateway.model import format_js_number

MAX_ALIASED: Final = 4 << 20
"""Total size of all aliased values in characters, so that aliases of aliases cannot multiply."""

_LONGEST_NUMBER: Final = 1_000
"""Characters; PyYAML converts a base-60 number in quadratic time."""

_SCALAR_OVERHEAD: Final = 16
_TAG: Final = "tag:yaml.org,2002:"
_LISTS: Final = frozenset((None, "!", f"{_TAG}seq", f"{_TAG}omap", f"{_TAG}pairs"))
_OBJECTS: Final = frozenset((None, "!", f"{_TAG}map", f"{_TAG}set"))
_MERGE: Final = f"{_TAG}merge"
_WHOLE_LINE: Final = 1 << 30

_Loader: Final[Any] = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_Dumper: Final[Any] = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper
_RESOLVER: Final[Any] = Resolver()
_CONSTRUCTOR: Final = SafeConstructor()


def parse_yaml(text: str, *, single: bool = False) -> list[Any]:
    """Return the documents of a stream, none for an empty text; `single` refuses a second one."""
    builder = _YamlDocumentBuilder(single)
    try:
        for event in yaml.parse(encode_utf8(text), Loader=_Loader):
            builder.take(event)
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
        raise _parse_error(reason, getattr(error, "problem_mark", None)) from error
    return builder.documents


def write_yaml(value: Any) -> str:
    """Write block style with keys in their order; texts are not folded, and quoted only if YAML requires it."""
    text: str = yaml.dump(
        value, Dumper=_PlainDumper, allow_unicode=True, sort_keys=False, default_flow_style=False, width=_WHOLE_LINE
    )
    return text


class _PlainDumper(_Dumper):  # type: ignore[misc]  # which of the two it is depends on the installation
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> Any:
        return self.represent_scalar(f"{_TAG}str", text, style="|" if "\n" in text else None)


_PlainDumper.add_representer(str, _PlainDumper.represent_text)


@dataclass(slots=True)
class _Collection:
    """A list or an object that is not closed yet."""

    container: Any
    anchor: str | None
    size: int = 0
    key: str | None = None
    is_merge: bool = False
    merged: dict[str, Any] = field(default_factory=dict)


class _YamlDocumentBuilder:
    """Builds documents from parser events."""

    def __init__(self, single: bool) -> None:
        self.documents: list[Any] = []
        self._single = single
        self._open: list[_Collection] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._aliased = 0

    def take(self, event: Any) -> None:
        match event:
            case yaml.ScalarEvent():
                self._scalar(event)
            case yaml.SequenceStartEvent():
                self._start([], event, tags=_LISTS)
            case yaml.MappingStartEvent():
                self._start({}, event, tags=_OBJECTS)
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                self._end(event)
            case yaml.AliasEvent():
                self._alias(event)
            case yaml.DocumentStartEvent():
                if self._single and self.documents:
                    _refuse("a second document starts where only one is expected", event)
                self._anchors, self._aliased = {}, 0
            case yaml.DocumentEndEvent():
                if self._aliased:  # the depths of nested aliases add up
                    check_depth(self.documents[-1], YamlParseError)

    def _scalar(self, event: Any) -> None:
        tag = event.tag
        if tag is None or tag == "!":
            tag = _RESOLVER.resolve(ScalarNode, event.value, event.implicit)
        parent = self._open[-1] if self._open else None
        if tag == _MERGE and parent and isinstance(parent.container, dict) and not _awaits_value(parent):
            parent.is_merge = True
            return
        value = _scalar_value(tag, event)
        size = _SCALAR_OVERHEAD + len(event.value)
        self._remember(event.anchor, value, size=size)
        self._add(value, event, size=size)

    def _start(self, container: Any, event: Any, *, tags: frozenset[str | None]) -> None:
        if event.tag not in tags:
            _refuse(f"the tag {truncate(event.tag)!r} is not supported", event)
        if len(self._open) >= MAX_DEPTH:
            raise depth_error(YamlParseError)
        self._open.append(_Collection(container, event.anchor, _SCALAR_OVERHEAD))

    def _end(self, event: Any) -> None:
        closed = self._open.pop()
        value = {**closed.merged, **closed.container} if closed.merged else closed.container
        self._remember(closed.anchor, value, size=closed.size)
        self._add(value, event, size=closed.size)

    def _alias(self, event: Any) -> None:
        if any(collection.anchor == event.anchor for collection in self._open):
            _refuse(f"the anchor {truncate(event.anchor)!r} contains itself", event)
        if event.anchor not in self._anchors:
            _refuse(f"the alias {truncate(event.anchor)!r} has no anchor", event)
        value, size = self._anchors[event.anchor]
        self._aliased += size
        if self._aliased > MAX_ALIASED:
            _refuse(f"aliases expand to more than {MAX_ALIASED} characters", event)
        self._add(value, event, size=size)

    def _remember(self, anchor: str | None, value: Any, *, size: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, size)

    def _add(self, value: Any, event: Any, *, size: int) -> None:
        if not self._open:
            self.documents.append(value)
            return
        parent = self._open[-1]
        parent.size += size
        if isinstance(parent.container, list):
            parent.container.append(value)
        elif parent.is_merge:
            parent.is_merge = False
            for each in reversed(value) if isinstance(value, list) else (value,):
                if not isinstance(each, dict):
                    _refuse("only objects can be merged", event)
                parent.merged.update(each)
        elif parent.key is None:
            parent.key = _key(value, event)
        else:
            parent.container[parent.key] = value
            parent.key = None


def _awaits_value(collection: _Collection) -> bool:
    return collection.is_merge or collection.key is not None


def _key(value: Any, event: Any) -> str:
    if isinstance(value, dict | list):
        _refuse("a key must be a scalar", event)
    if isinstance(value, str):
        return value
    return {None: "null", True: "true", False: "false"}[value] if _is_word(value) else format_js_number(value)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _scalar_value(tag: str, event: Any) -> Any:
    convert = _SCALARS.get(tag)
    if convert is None:
        _refuse(f"the tag {truncate(tag)!r} is not supported", event)
    try:
        return convert(event.value)
    except (ValueError, LookupError, ArithmeticError, AttributeError) as error:
        kind = tag.removeprefix(_TAG)
        raise _parse_error(f"a scalar cannot be read as {kind!r}", event.start_mark) from error


def _integer(text: str) -> Any:
    return _CONSTRUCTOR.construct_yaml_int(_node(text))


def _float(text: str) -> Any:
    number = _CONSTRUCTOR.construct_yaml_float(_node(text))
    if math.isfinite(number):
        return number
    return ".nan" if math.isnan(number) else ".inf" if number > 0 else "-.inf"


def _timestamp(text: str) -> str:
    try:
        moment: str = _CONSTRUCTOR.construct_yaml_timestamp(_node(text)).isoformat()
    except ValueError:  # for example a thirteenth month
        return text
    return moment


def _node(text: str) -> ScalarNode:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a number has at most {_LONGEST_NUMBER} characters")
    return ScalarNode("", text)


_SCALARS: Final[dict[str, Callable[[str], Any]]] = {
    f"{_TAG}str": str,
    f"{_TAG}value": str,
    _MERGE: str,
    f"{_TAG}binary": lambda text: "".join(text.split()),
    f"{_TAG}null": lambda text: None,
    f"{_TAG}bool": lambda text: SafeConstructor.bool_values[text.lower()],
    f"{_TAG}int": _integer,
    f"{_TAG}float": _float,
    f"{_TAG}timestamp": _timestamp,
}


def _refuse(reason: str, event: Any) -> NoReturn:
    raise _parse_error(reason, event.start_mark)


def _parse_error(reason: str, mark: Any) -> YamlParseError:
    where = f" (line {mark.line + 1}:{mark.column + 1})" if mark else ""
    return YamlParseError(f"{reason}{where}")
