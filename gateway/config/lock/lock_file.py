"""The lock file `gateway.lock`: the definitions of each upstream at the last review, and their source.

The file is YAML that is readable in a diff, with the same bytes for the same definitions. Each definition is one
document. Texts of several lines are block scalars, long texts are folded at spaces, and invisible characters are
escaped.

A definition whose digest does not match is not loaded, because it is unknown what was reviewed.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.config.yaml.document import DocumentPath as Place
from gateway.config.yaml.document import YamlDocument
from gateway.config.yaml.folder import read_file
from gateway.registries import (
    KINDS,
    DefinitionKind,
    Diagnostic,
    InvalidDefinition,
    Position,
    UpstreamDefinition,
    is_visible,
)

LockSource = tuple[str, ...]
"""Source of definitions as written in the Upstream document: the transport, then its URL or program."""

ANY_SOURCE: Final = "default"
"""Key of the source that applies without an environment, and to environments without their own source."""


@dataclass(frozen=True, slots=True)
class LockedUpstream:
    """A locked upstream. `server` is the server's description of itself, for information only."""

    name: str
    sources: Mapping[str, LockSource]
    server: Mapping[str, str] = field(default_factory=dict)
    confirmed: str | None = None
    """Time of the last confirmation of definitions that had changed and changed back."""
    position: Position | None = None

    def has_source(self, source: LockSource, *, environment: str | None) -> bool:
        """Whether the definitions of this source are the ones that were reviewed."""
        return self.sources.get(environment or ANY_SOURCE, self.sources.get(ANY_SOURCE)) == source


@dataclass(frozen=True, slots=True)
class Lock:
    """The content of a lock file: upstreams by name, and sorted definitions."""

    upstreams: Mapping[str, LockedUpstream] = field(default_factory=dict)
    definitions: tuple[UpstreamDefinition, ...] = ()

    def of(self, upstream: str) -> tuple[UpstreamDefinition, ...]:
        return tuple(each for each in self.definitions if each.upstream == upstream)

    def find(self, upstream: str, kind: DefinitionKind, name: str) -> UpstreamDefinition | None:
        return next((each for each in self.of(upstream) if (each.kind, each.name) == (kind, name)), None)

    def with_upstream(self, upstream: LockedUpstream, definitions: Iterable[UpstreamDefinition]) -> "Lock":
        """Return a lock with new definitions of one upstream."""
        others = [each for each in self.definitions if each.upstream != upstream.name]
        found = sort_definitions([*others, *(replace(each, is_pinned=True, position=None) for each in definitions)])
        return Lock({**self.upstreams, upstream.name: upstream}, found)

    def restrict_to(self, upstreams: Iterable[str]) -> "Lock":
        """Return a lock of only these upstreams."""
        names = set(upstreams)
        return Lock(
            {name: each for name, each in self.upstreams.items() if name in names},
            tuple(each for each in self.definitions if each.upstream in names),
        )


def sort_definitions(definitions: Iterable[UpstreamDefinition]) -> tuple[UpstreamDefinition, ...]:
    return tuple(sorted(definitions, key=lambda each: (each.upstream, KINDS.index(each.kind), each.name)))


VERSION: Final = 1
HEADING: Final = """\
# Reviewed definitions of each upstream. Written by `gateway lock`; manual changes are detected.
"""
_WIDTH: Final = 100
_PLAIN: Final = re.compile(r"[A-Za-z$_][A-Za-z0-9_$./-]*")
_WORDS: Final = frozenset(["null", "true", "false", "yes", "no", "on", "off", "y", "n"])
"""Words that some YAML parsers do not read as text."""

_FIRST: Final = ("name", "title", "description")


def render_lock(lock: Lock) -> str:
    parts = [f"{HEADING}{_render_mapping({'version': VERSION})}"]
    for name in sorted(lock.upstreams):
        parts.append(_render_mapping(_upstream(lock.upstreams[name])))
        parts += [_render_mapping(_definition(each)) for each in lock.of(name)]
    return "---\n".join(parts)


def _upstream(upstream: LockedUpstream) -> dict[str, Any]:
    sources = {name: list(upstream.sources[name]) for name in sorted(upstream.sources)}
    found: dict[str, Any] = {"upstream": upstream.name, "sources": sources}
    found |= {"server": dict(upstream.server)} if upstream.server else {}
    return {**found, "confirmed": upstream.confirmed} if upstream.confirmed else found


def _definition(definition: UpstreamDefinition) -> dict[str, Any]:
    return {
        "upstream": definition.upstream,
        definition.kind: definition.name,
        "digest": f"sha256:{definition.digest}",
        "definition": _sort_keys(definition.given, first=_FIRST),
    }


def _sort_keys(value: Any, first: Sequence[str] = ()) -> Any:
    """Return a copy with sorted keys, the keys `first` in front."""
    if isinstance(value, Mapping):
        keys = [*(key for key in first if key in value), *sorted(key for key in value if key not in first)]
        return {key: _sort_keys(value[key]) for key in keys}
    return [_sort_keys(each) for each in value] if isinstance(value, list | tuple) else value


def _render_mapping(value: Mapping[str, Any]) -> str:
    return "".join(f"{line}\n" for line in _lines(value, 0))


def _lines(value: Mapping[str, Any] | Sequence[Any], indent: int) -> Iterator[str]:
    """Yield the lines of a mapping or a list in block style."""
    blank = " " * indent
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entry(f"{blank}{_key(key)}:", item, indent)
        return
    for item in value:
        if isinstance(item, Mapping | list) and item and _flow(item) is None:
            first, *rest = _lines(item, indent + 2)
            yield f"{blank}- {first[indent + 2 :]}"
            yield from rest
        else:
            yield from _entry(f"{blank}-", item, indent)


def _entry(start: str, item: Any, indent: int) -> Iterator[str]:
    if isinstance(item, str):
        yield from _text(start, item, indent + 2)
    elif isinstance(item, Mapping | list) and _flow(item) is None:
        yield start
        yield from _lines(item, indent + 2)
    else:
        yield f"{start} {_flow(item)}"


def _flow(item: Any) -> str | None:
    """Return a scalar or a container on one line, or `None` if it needs several lines."""
    if isinstance(item, Mapping):
        return None if item else "{}"
    if isinstance(item, list):
        if any(isinstance(each, Mapping | list) or (isinstance(each, str) and len(each) > _WIDTH) for each in item):
            return None
        line = f"[{', '.join(map(_scalar, item))}]"
        return line if len(line) <= _WIDTH else None
    return _scalar(item)


def _text(start: str, text: str, indent: int) -> Iterator[str]:
    blank = " " * indent
    if _is_literal(text):
        body = text.removesuffix("\n")
        yield f"{start} |{'' if text.endswith(chr(10)) else '-'}"
        yield from (f"{blank}{line}" if line else "" for line in body.split("\n"))
    elif len(text) > _WIDTH and is_visible(text) and all(text.split(" ")):
        yield f"{start} >-"
        yield from (f"{blank}{line}" for line in _fold(text.split(" ")))
    else:
        yield f"{start} {_scalar(text)}"


def _is_literal(text: str) -> bool:
    """Whether the text fits a block scalar. Text that starts or ends with blanks is quoted to make them visible."""
    if "\n" not in text or text.endswith("\n\n"):
        return False
    lines = text.removesuffix("\n").split("\n")
    return (
        bool(lines[0].strip(" "))
        and not text.startswith(" ")
        and all(is_visible(line) and (not line or bool(line.strip(" "))) for line in lines)
    )


def _fold(words: Sequence[str]) -> Iterator[str]:
    line = ""
    for word in words:
        if line and len(line) + 1 + len(word) > _WIDTH:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


def _key(text: str) -> str:
    return _scalar(text)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) is not None and value.lower() not in _WORDS and len(value) <= _WIDTH
        return value if is_plain else _quote(value)
    if isinstance(value, float):
        return _decimal(value)
    return json.dumps(value)


def _decimal(value: float) -> str:
    """Return the number without an exponent, which not every YAML parser reads as a number."""
    text = format(Decimal(repr(value)), "f")
    return text if "." in text else f"{text}.0"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return '"' + (escaped if is_visible(escaped) else "".join(map(_escape, escaped))) + '"'


def _escape(character: str) -> str:
    if is_visible(character):
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


LOCK_FILE: Final = "gateway.lock"
MAX_BYTES: Final = 16 << 20
_AGAIN: Final = "review the changes, and run: gateway lock"


def read_lock(folder: Path) -> tuple[Lock, list[Diagnostic]]:
    """Return the lock of a folder, empty if there is none, and the problems. With errors, it is incomplete."""
    path = folder / LOCK_FILE
    if not path.exists() and not path.is_symlink():
        return Lock(), []
    documents, problems = read_file(path, path.as_posix(), limit=MAX_BYTES)
    if any(found.is_error for found in problems) or not documents:
        return Lock(), problems or [
            Diagnostic("bad-lock", "the file is empty", Position(path.as_posix(), 1), help=_AGAIN)
        ]
    reading = _LockReader()
    reading.read(documents)
    return Lock(reading.upstreams, sort_definitions(reading.definitions)), [*problems, *reading.problems]


class _LockReader:
    """Reads the documents of a lock file."""

    def __init__(self) -> None:
        self.upstreams: dict[str, LockedUpstream] = {}
        self.definitions: list[UpstreamDefinition] = []
        self.problems: list[Diagnostic] = []
        self._seen: dict[tuple[str, str, str], Position] = {}

    def read(self, documents: list[YamlDocument]) -> None:
        head, *rest = documents
        if not self._check_version(head):
            return
        for each in rest:
            if not isinstance(each.data.get("upstream"), str):
                self._note(each, "the block names no upstream", ())
            elif "sources" in each.data:
                self._upstream(each)
            else:
                self._definition(each)

    def _check_version(self, head: YamlDocument) -> bool:
        version = head.data.get("version")
        if version == VERSION and type(version) is int:
            return True
        if "version" not in head.data:
            self._note(head, "the file does not start with its version", ())
        elif isinstance(version, int) and version > VERSION:
            message = f"the file has version {version}, but this program supports only {VERSION}"
            self._note(head, message, ("version",), help="use the program version that wrote it, or a newer one")
        else:
            self._note(head, "the version of the file is invalid", ("version",))
        return False

    def _upstream(self, document: YamlDocument) -> None:
        data = document.data
        if unknown := data.keys() - {"upstream", "sources", "server", "confirmed"}:
            self._note(document, f"{min(unknown)!r} is not a field of an upstream", (min(unknown),))
            return
        sources, server = data["sources"], data.get("server", {})
        if not _is_table(sources, lambda each: isinstance(each, list) and all(isinstance(part, str) for part in each)):
            self._note(document, "sources must map environments to lists of texts", ("sources",))
            return
        if not _is_table(server, lambda each: isinstance(each, str)):
            self._note(document, "server must map names to texts", ("server",))
            return
        confirmed = data.get("confirmed")
        if not isinstance(confirmed, str | None):
            self._note(document, "confirmed must be a text", ("confirmed",))
            return
        name = data["upstream"]
        if name in self.upstreams:
            self._note(document, f"the upstream {name!r} is listed twice", ("upstream",))
            return
        found = {environment: tuple(source) for environment, source in sources.items()}
        self.upstreams[name] = LockedUpstream(name, found, server, confirmed, document.position(("upstream",)))

    def _definition(self, document: YamlDocument) -> None:
        data = document.data
        kinds = [kind for kind in KINDS if kind in data]
        if len(kinds) != 1 or data.keys() != {"upstream", kinds[0], "digest", "definition"}:
            self._note(document, "the block is neither an upstream nor a definition with its digest", ())
            return
        [kind] = kinds
        try:
            found = UpstreamDefinition.read(
                data["upstream"], data["definition"], kind=kind, is_pinned=True, position=document.position((kind,))
            )
        except InvalidDefinition as error:
            self._note(document, f"the definition cannot be used: {error}", ("definition",))
            return
        self._add_definition(document, replace(found, locate=partial(_locate, document)), kind)

    def _add_definition(self, document: YamlDocument, found: UpstreamDefinition, kind: DefinitionKind) -> None:
        data = document.data
        key = (found.upstream, kind, found.name)
        if found.name != data[kind]:
            self._note(document, f"the block has the name {data[kind]!r}, but its definition {found.name!r}", (kind,))
        elif data["digest"] != f"sha256:{found.digest}":
            message = f"the digest of {found.identity} does not match its definition: the file was changed manually"
            self._note_tampering(document, message)
        elif found.upstream not in self.upstreams:
            self._note(document, f"the file has no source of upstream {found.upstream!r}", ("upstream",))
        elif key in self._seen:
            self._note(document, f"{found.identity} is locked twice", (kind,))
        else:
            self._seen[key] = document.position((kind,))
            self.definitions.append(found)

    def _note_tampering(self, document: YamlDocument, message: str) -> None:
        self.problems.append(Diagnostic("lock-tampered", message, document.position(("digest",)), help=_AGAIN))

    def _note(self, document: YamlDocument, message: str, place: Place, *, help: str = _AGAIN) -> None:
        position = document.key_position(place) if place else document.position(place)
        self.problems.append(Diagnostic("bad-lock", message, position, help=help))


def _locate(document: YamlDocument, path: Place) -> Position:
    """Return the position of a part of a definition, at its key, because a text may span lines."""
    return document.key_position(("definition", *path))


def _is_table(value: Any, fits: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) and fits(each) for key, each in value.items())
