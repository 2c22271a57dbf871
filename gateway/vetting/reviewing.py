"""What deserves a person's look in the definition of a tool, prompt or template: findings with places, no verdict.

Structure first: hidden characters, mentions of other servers' tools, arguments that are not declared, addresses,
values that are sentences, texts that are too long. Words to the model come last, as a hint.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.governance.diagnostics import Diagnostic, Position
from gateway.governance.globs import glob_matches
from gateway.governance.imports import ImportedDefinition, texts_in
from gateway.governance.names import skeleton
from gateway.governance.unseen import hidden_in, is_bidirectional
from gateway.vetting.phrases import phrase_in

Path = tuple[str | int, ...]

LONGEST_DESCRIPTION: Final = 8_000
LONGEST_PART: Final = 4_000
"""Characters of any other text."""

LONGEST_VALUE: Final = 200
"""Characters of a value that a caller is to choose or is given: an enum entry, a default."""

_VALUES: Final = frozenset({"enum", "default", "const", "title"})
_NOT_READ: Final = frozenset({"$schema", "$id", "$ref", "pattern", "uriTemplate", "format"})
"""Keys whose values are for programs."""

_URL: Final = re.compile(
    r"\b(https?|wss?|ftp|file)://([^\s/?#\"'<>)\]}\\,;]+)|\b(javascript|data|vbscript):[^\s]", re.IGNORECASE
)
_OPEN_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]", "example.com", "*.example.com", "example.org", "*.example.org")
_WORD: Final = re.compile(r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*")
_ARGUMENT: Final = re.compile(
    r"\b(?:parameter|argument)s?\s+(?:called\s+|named\s+)?[`'\"]([A-Za-z_][\w-]{0,63})[`'\"]"
    r"|[`'\"]([A-Za-z_][\w-]{0,63})[`'\"]\s+(?:parameter|argument)\b"
)
_DISTINCT: Final = re.compile(r"[A-Za-z0-9][_.-][A-Za-z0-9]|[a-z][A-Z]")
_SHORTEST_NAME: Final = 6
_SCRIPTS: Final = ("LATIN", "CYRILLIC", "GREEK")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a definition is looked at with: tools of others by name, and hosts that its texts may speak of."""

    others: Mapping[str, str] = field(default_factory=dict)
    """Names of tools by whose they are, this upstream's own left out."""
    hosts: Collection[str] = ()


def review(definition: ImportedDefinition, around: Surroundings) -> Iterator[Diagnostic]:
    """Every finding once per place, warnings but for hidden text, which nobody writes by accident."""
    known = frozenset(map(skeleton, _declared(definition.given)))
    for path, text in texts_in(definition.given):
        if path and path[-1] in _NOT_READ:
            continue
        is_key = text == (path[-1] if path else None)
        yield from _hidden(definition, path, text)
        yield from _mixed(definition, path, text)
        yield from _long(definition, path, text)
        if not is_key:
            yield from _addressed(definition, path, text, around.hosts)
            yield from _undeclared(definition, path, text, known)
            yield from _mentions(definition, path, text, around.others)
        yield from _commanding(definition, path, text)


def others_of(upstream: str, tools: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Names that another upstream's tools have, or ours; `tools` are names by whose they are."""
    own = {name.casefold() for name in tools.get(upstream, ())}
    return {
        name.casefold(): owner
        for owner, names in sorted(tools.items())
        for name in names
        if owner != upstream and name.casefold() not in own and _is_distinct(name)
    }


def _is_distinct(name: str) -> bool:
    """Whether a name is more than a word that any text may have."""
    return len(name) >= _SHORTEST_NAME and _DISTINCT.search(name) is not None


def _hidden(definition: ImportedDefinition, path: Path, text: str) -> Iterator[Diagnostic]:
    found = list(hidden_in(text))
    if found:
        _, first = found[0]
        turns = any(is_bidirectional(char) for _, char in found)
        what = "characters that turn the direction of text" if turns else "characters that nobody sees"
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        message = f"{_place(definition, path)} has {what}: U+{ord(first):04X}{more}"
        yield Diagnostic("hidden-text", message, _at(definition, path), help="do not import it, or have it mended")


def _mixed(definition: ImportedDefinition, path: Path, text: str) -> Iterator[Diagnostic]:
    """Words of letters from several alphabets: how one word passes for another."""
    if text.isascii():
        return
    for word in re.findall(r"\w+", text):
        scripts = {script for char in word if (script := _script(char)) is not None}
        if len(scripts) > 1:
            message = f"{_place(definition, path)} has a word with letters of several alphabets: {_ascii(word)}"
            yield _warning("mixed-alphabets", message, definition, path, "compare it with what it looks like")
            return


def _script(char: str) -> str | None:
    if char.isascii():
        return "LATIN" if char.isalpha() else None
    name = unicodedata.name(char, "")
    return next((script for script in _SCRIPTS if name.startswith(script)), None)


def _long(definition: ImportedDefinition, path: Path, text: str) -> Iterator[Diagnostic]:
    limit = LONGEST_DESCRIPTION if path == ("description",) else LONGEST_PART
    if len(text) > limit:
        message = f"{_place(definition, path)} has {len(text)} characters, and more than {limit} are rarely read"
        yield _warning("long-text", message, definition, path, "read it to its end")
    elif _is_value(path) and len(text) > LONGEST_VALUE and text.count(" ") > 8:
        message = f"{_place(definition, path)} is a value of {len(text)} characters that reads like a text"
        yield _warning("long-text", message, definition, path, "read it to its end")


def _is_value(path: Path) -> bool:
    return len(path) > 1 and any(step in _VALUES for step in path[-2:])


def _addressed(definition: ImportedDefinition, path: Path, text: str, hosts: Collection[str]) -> Iterator[Diagnostic]:
    for found in _URL.finditer(text):
        if found[3] and "icons" in path:  # pictures of a few pixels
            continue
        host = (found[2] or "").rpartition("@")[2].casefold()
        bare = host if host.startswith("[") else host.partition(":")[0]
        is_known = bool(bare) and any(glob_matches(bare.rstrip("."), each) for each in (*_OPEN_HOSTS, *hosts))
        if not is_known:
            told = _ascii(bare or f"{found[3]}:")
            message = f"{_place(definition, path)} has an address of {told}"
            help = "if it belongs there, add it to the upstream: review: {hosts: [...]}"
            yield _warning("foreign-address", message, definition, path, help)
            return


def _undeclared(definition: ImportedDefinition, path: Path, text: str, known: frozenset[str]) -> Iterator[Diagnostic]:
    if definition.kind != "tool":
        return
    for found in _ARGUMENT.finditer(text):
        name = found[1] or found[2]
        if skeleton(name) not in known:
            message = f"{_place(definition, path)} speaks of an argument {name!r} that is not declared"
            yield _warning("undeclared-argument", message, definition, path, "find out where a value of it would go")
            return


def _declared(value: Any) -> Iterator[str]:
    """The names of all properties, at any depth, and of a prompt's arguments."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "properties" and isinstance(item, Mapping):
                yield from item
            yield from _declared(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _declared(item)


def _mentions(definition: ImportedDefinition, path: Path, text: str, others: Mapping[str, str]) -> Iterator[Diagnostic]:
    for found in _WORD.finditer(text):
        owner = others.get(found[0].casefold())
        if owner is not None:
            message = f"{_place(definition, path)} speaks of {found[0]!r}, a tool of {owner}"
            yield _warning("mentions-tool", message, definition, path, "no server has a say in how others are used")
            return


def _commanding(definition: ImportedDefinition, path: Path, text: str) -> Iterator[Diagnostic]:
    found = phrase_in(text)
    if found is not None:
        phrase, words = found
        message = f"{_place(definition, path)} tells the model {phrase.says}: {_ascii(words)}"
        yield _warning(
            "instructs-model", message, definition, path, "a definition says what a tool does, not what to do"
        )


def _warning(code: str, message: str, definition: ImportedDefinition, path: Path, help: str) -> Diagnostic:
    return Diagnostic(code, message, _at(definition, path), "warning", help)


def _place(definition: ImportedDefinition, path: Path) -> str:
    shown = ".".join(str(step) for step in path)
    kind = "" if definition.kind == "tool" else f"{definition.kind} "
    return f"{kind}{_ascii(definition.identity)}: {_ascii(shown)}"


def _at(definition: ImportedDefinition, path: Path) -> Position:
    if definition.locate is not None:
        return definition.locate(path)
    return definition.position or Position(definition.upstream, 1)


def _ascii(text: str, limit: int = 80) -> str:
    """In one short line that hides nothing."""
    line = " ".join(text.split())
    shown = line if len(line) <= limit else f"{line[:limit]}…"
    return ascii(shown) if not shown.isascii() or " " in shown else shown
