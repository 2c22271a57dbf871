"""`${NAME}` in text values, replaced from the environment.

`${NAME}`, `${NAME:-used when unset or empty}`, `${NAME:?what to do when unset or empty}`, and `$$` for a dollar. A
dollar in front of anything else stays one. Only values that were text and stay text are touched, never keys, and
what comes from the environment is not looked at again.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.config.nodes import Document, Path
from gateway.config.text import MAX_BYTES, Problems, TooManyProblems, clipped
from gateway.governance.diagnostics import Diagnostic, Position

_DOLLAR: Final = re.compile(r"\$(?:\$|\{([^}]*)(\}?))")
_REFERENCE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::([-?])(.*))?", re.DOTALL)
_FORMS: Final = "write ${NAME}, ${NAME:-default} or ${NAME:?what to do}, and $$ for a dollar"


@dataclass(frozen=True, slots=True)
class EnvUse:
    """A place that reads an environment variable. `default` is `None` where there is none."""

    name: str
    position: Position
    is_set: bool
    default: str | None = None


def substitute(document: Document, environ: Mapping[str, str]) -> tuple[Document, list[Diagnostic], list[EnvUse]]:
    """The document with its variables filled in, what could not be, and every variable that was asked for.

    A value with a problem keeps its text as written, so that later layers can go on.
    """
    problems = Problems()
    filling = _Filling(document, environ, problems=problems)
    try:
        data = filling.filled(document.data, ())
    except TooManyProblems:
        problems.close()
        return document, problems.found, filling.uses
    if not filling.written:
        return document, problems.found, filling.uses
    substituted, written = document.substituted | filling.substituted, {**document.written, **filling.written}
    return replace(document, data=data, substituted=substituted, written=written), problems.found, filling.uses


class _Unfilled(Exception):
    """A reference that cannot be replaced, as `code`, `message` and `help`."""


class _Filling:
    """One document: unchanged parts are shared with the original."""

    def __init__(self, document: Document, environ: Mapping[str, str], *, problems: Problems) -> None:
        self.uses: list[EnvUse] = []
        self.substituted: set[Path] = set()
        self.written: dict[Path, str] = {}
        self._document = document
        self._environ = environ
        self._problems = problems
        self._inserted = 0

    def filled(self, value: Any, path: Path) -> Any:
        match value:
            case str():
                return self._text(value, path) if "$" in value else value
            case dict():
                return _changed(value, {key: self.filled(each, (*path, key)) for key, each in value.items()})
            case list():
                return _changed(value, [self.filled(each, (*path, index)) for index, each in enumerate(value)])
        return value

    def _text(self, text: str, path: Path) -> str:
        parts: list[str] = []
        end, is_sound, before = 0, True, len(self.uses)
        for match in _DOLLAR.finditer(text):
            parts.append(text[end : match.start()])
            end = match.end()
            try:
                parts.append(self._replacement(match, path))
            except _Unfilled as unfilled:
                code, message, help = unfilled.args
                at = self._position(text, path, offset=match.start(), width=len(match[0]))
                self._problems.note(code, message, at, help=help)
                is_sound = False
        if not parts or not is_sound:
            return text
        self.written[path] = text
        if any(self._environ.get(use.name) for use in self.uses[before:]):
            self.substituted.add(path)
        return "".join((*parts, text[end:]))

    def _replacement(self, match: re.Match[str], path: Path) -> str:
        if match[1] is None:
            return "$"
        if not match[2]:
            raise _Unfilled("env-syntax", "'${' is not closed", "close it with '}', or write $${ for the text itself")
        reference = _REFERENCE.fullmatch(match[1])
        if reference is None:
            raise _Unfilled("env-syntax", f"{clipped(match[0])} does not name an environment variable", _FORMS)
        name, form, rest = reference.groups()
        if rest is not None and "${" in rest.replace("$$", ""):
            raise _Unfilled("env-syntax", "a variable inside a variable is not read", "set the inner one outside")
        default = rest.replace("$$", "$") if form == "-" else None
        at = self._position(match.string, path, offset=match.start(), width=len(match[0]))
        self.uses.append(EnvUse(name, at, name in self._environ, default))
        return self._looked_up(name, default, demand=rest if form == "?" else None)

    def _looked_up(self, name: str, default: str | None, *, demand: str | None) -> str:
        value = self._environ.get(name)
        if value is None or (not value and (default is not None or demand is not None)):
            if default is not None:
                return default
            state = "not set" if value is None else "empty"
            help = demand or f"set {name}, or give a default: ${{{name}:-…}}"
            raise _Unfilled("env-missing", f"environment variable {name} is {state}", help)
        if not _is_utf8(value):
            raise _Unfilled("env-encoding", f"environment variable {name} is not UTF-8", f"set {name} to UTF-8 text")
        self._inserted += len(value)
        if self._inserted > MAX_BYTES:  # a long value in many places: a small file could fill the memory
            raise _Unfilled(
                "env-limit", "the variables of this document stand for more than 1 MiB", "use fewer of them"
            )
        return value

    def _position(self, text: str, path: Path, *, offset: int, width: int) -> Position:
        """The `${` itself where the text stands in the file character by character, else the whole value."""
        whole = self._document.position(path)
        quotes = whole.width - len(text)
        if path not in self._document.positions or quotes not in (0, 2):
            return whole
        return replace(whole, column=whole.column + quotes // 2 + offset, width=width)


def _changed(original: Any, copy: Any) -> Any:
    pairs: Iterator[tuple[Any, Any]]
    if isinstance(original, dict):
        pairs = zip(original.values(), copy.values(), strict=True)
    else:
        pairs = zip(original, copy, strict=True)
    return original if all(before is after for before, after in pairs) else copy


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
