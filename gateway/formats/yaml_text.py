"""YAML text to JSON values and back, through PyYAML.

Values are built from the parser's events: its node tree costs half a kilobyte per scalar and is built by
recursion. Refused are tags beyond YAML's own, aliases that multiply, nesting past the limit and keys that are
not scalars. What JSON does not have becomes text: dates in ISO form, `.nan` and `.inf` as they are written,
and keys. Scalars are those of YAML 1.1, as PyYAML reads them.

Needs PyYAML; `yamldoc` imports this module on first use.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import ScalarNode
from yaml.resolver import Resolver

from gateway.core.canonical import js_number
from gateway.core.lines import encode
from gateway.errors import YamlParseError
from gateway.formats.documents import MAX_DEPTH, clipped, require_shallow, too_deep

MAX_ALIASED: Final = 4 << 20
"""Characters that all aliases together may stand for, so that none can multiply the others."""

_LONGEST_NUMBER: Final = 1_000
"""Characters; PyYAML reads a base-60 number in quadratic time."""

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


def parse_documents(text: str, *, single: bool = False) -> list[Any]:
    """The documents of a stream, none for an empty text; `single` refuses a second one."""
    stream = _Stream(single)
    try:
        for event in yaml.parse(encode(text), Loader=_Loader):
            stream.take(event)
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
        raise _failed(reason, getattr(error, "problem_mark", None)) from error
    return stream.documents


def write_document(value: Any) -> str:
    """Block style, keys in their order, texts neither folded nor, where YAML allows it, quoted."""
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
    """A list or an object whose end has not been reached."""

    container: Any
    anchor: str | None
    size: int = 0
    key: str | None = None
    is_merge: bool = False
    merged: dict[str, Any] = field(default_factory=dict)


class _Stream:
    """Events in, documents out."""

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
                if self._aliased:  # each part was shallow enough, but not necessarily their sum
                    require_shallow(self.documents[-1], YamlParseError)

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
            _refuse(f"the tag {clipped(event.tag)!r} is not read", event)
        if len(self._open) >= MAX_DEPTH:
            raise too_deep(YamlParseError)
        self._open.append(_Collection(container, event.anchor, _SCALAR_OVERHEAD))

    def _end(self, event: Any) -> None:
        closed = self._open.pop()
        value = {**closed.merged, **closed.container} if closed.merged else closed.container
        self._remember(closed.anchor, value, size=closed.size)
        self._add(value, event, size=closed.size)

    def _alias(self, event: Any) -> None:
        if any(collection.anchor == event.anchor for collection in self._open):
            _refuse(f"the anchor {clipped(event.anchor)!r} contains itself", event)
        if event.anchor not in self._anchors:
            _refuse(f"the alias {clipped(event.anchor)!r} has no anchor", event)
        value, size = self._anchors[event.anchor]
        self._aliased += size
        if self._aliased > MAX_ALIASED:
            _refuse(f"aliases stand for more than {MAX_ALIASED} characters", event)
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
        _refuse("a key is a scalar", event)
    if isinstance(value, str):
        return value
    return {None: "null", True: "true", False: "false"}[value] if _is_word(value) else js_number(value)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _scalar_value(tag: str, event: Any) -> Any:
    convert = _SCALARS.get(tag)
    if convert is None:
        _refuse(f"the tag {clipped(tag)!r} is not read", event)
    try:
        return convert(event.value)
    except (ValueError, LookupError, ArithmeticError, AttributeError) as error:
        kind = tag.removeprefix(_TAG)
        raise _failed(f"a scalar cannot be read as {kind!r}", event.start_mark) from error


def _integer(text: str) -> Any:
    return _CONSTRUCTOR.construct_yaml_int(_node(text))


def _float(text: str) -> Any:
    number = _CONSTRUCTOR.construct_yaml_float(_node(text))
    if math.isfinite(number):
        return number
    return ".nan" if math.isnan(number) else ".inf" if number > 0 else "-.inf"


def _moment(text: str) -> str:
    try:
        moment: str = _CONSTRUCTOR.construct_yaml_timestamp(_node(text)).isoformat()
    except ValueError:  # a thirteenth month, say
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
    f"{_TAG}timestamp": _moment,
}


def _refuse(reason: str, event: Any) -> NoReturn:
    raise _failed(reason, event.start_mark)


def _failed(reason: str, mark: Any) -> YamlParseError:
    where = f" (line {mark.line + 1}:{mark.column + 1})" if mark else ""
    return YamlParseError(f"{reason}{where}")
