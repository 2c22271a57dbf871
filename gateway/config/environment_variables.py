"""Environment variables in text values, and the places where documents name secrets.

The forms are `${NAME}`, `${NAME:-used when unset or empty}`, `${NAME:?what to do when unset or empty}`, and `$$` for a
dollar. A dollar before anything else is literal. Only text values are substituted, never keys. The result stays text
and is not substituted again.

Secrets are searched in plain data, so that a document with other problems is included. No secret is read here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.config.yaml.document import (
    MAX_BYTES,
    DocumentPath,
    ProblemList,
    TooManyProblems,
    YamlDocument,
    truncate_line,
)
from gateway.registries import Diagnostic, Position

_NO_SECRETS_BELOW: Final = frozenset({"annotations", "labels", "schema", "resolution", "keys"})
"""Fields without secrets: free text, JSON Schemas, and public key sets."""

_PARTS: Final[Mapping[str, str]] = {"IdentityProvider": "identity", "Storage": "storage", "Telemetry": "telemetry"}
"""Kinds that are in use only if the Gateway names them, with the field that names them."""

_NOT_CALLED: Final = frozenset({"draft", "retired"})
"""Lifecycles in which a tool cannot be called."""


@dataclass(frozen=True, slots=True)
class SecretUse:
    """A reference to a secret. `name` is the variable, or the path if `is_file`; `written` is the text in the file."""

    name: str
    is_file: bool
    position: Position
    written: str


def find_secret_uses(documents: Iterable[YamlDocument]) -> Iterator[SecretUse]:
    for document in documents:
        for path, name in _references(document.data, ()):
            written = document.written.get(path, name)
            yield SecretUse(name, path[-1] == "fromFile", document.position(path), written)


def drop_unused_documents(documents: Sequence[YamlDocument]) -> list[YamlDocument]:
    """Drop parts that the Gateway does not name, and tools that cannot be called."""
    gateways = _gateway_specs(documents)
    return [document for document in documents if _is_in_use(document, gateways)]


def _gateway_specs(documents: Iterable[YamlDocument]) -> list[dict[str, Any]]:
    specs = [document.data.get("spec") for document in documents if document.data.get("kind") == "Gateway"]
    return [spec for spec in specs if isinstance(spec, dict)]


def _is_in_use(document: YamlDocument, gateways: Sequence[dict[str, Any]]) -> bool:
    match document.data:
        case {"kind": "Tool", "spec": {"lifecycle": str(lifecycle)}}:
            return lifecycle not in _NOT_CALLED
        case {"kind": str(kind), "metadata": {"name": str(name)}} if kind in _PARTS and gateways:
            return any(name in _names(gateway.get(_PARTS[kind])) for gateway in gateways)
    return True


def _names(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _references(value: Any, path: DocumentPath) -> Iterator[tuple[DocumentPath, str]]:
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


_DOLLAR: Final = re.compile(r"\$(?:\$|\{([^}]*)(\}?))")
_REFERENCE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::([-?])(.*))?", re.DOTALL)
_FORMS: Final = "write ${NAME}, ${NAME:-default} or ${NAME:?what to do}, and $$ for a dollar"


@dataclass(frozen=True, slots=True)
class EnvUse:
    """A reference to an environment variable. `default` is `None` if the reference has none."""

    name: str
    position: Position
    is_set: bool
    default: str | None = None


def substitute_environment(
    document: YamlDocument, environ: Mapping[str, str]
) -> tuple[YamlDocument, list[Diagnostic], list[EnvUse]]:
    """Return the document with its variables filled in, the problems, and every variable it uses.

    A value with a problem keeps its original text, so that later checks can continue.
    """
    problems = ProblemList()
    if not _has_dollar(document.data):
        return document, problems.found, []
    substitution = _Substitution(document, environ, problems=problems)
    try:
        data = substitution.substitute(document.data, ())
    except TooManyProblems:
        problems.close()
        return document, problems.found, substitution.uses
    if not substitution.written:
        return document, problems.found, substitution.uses
    substituted, written = document.substituted | substitution.substituted, {**document.written, **substitution.written}
    return replace(document, data=data, substituted=substituted, written=written), problems.found, substitution.uses


def _has_dollar(data: object) -> bool:
    """Whether a text of the document has a dollar: most have none, and this is the fastest way to look."""
    return "$" in repr(data)


class _Unfilled(Exception):
    """A reference that cannot be replaced, as `code`, `message` and `help`."""


class _Substitution:
    """Substitution in one document. Unchanged parts are shared with the original."""

    def __init__(self, document: YamlDocument, environ: Mapping[str, str], *, problems: ProblemList) -> None:
        self.uses: list[EnvUse] = []
        self.substituted: set[DocumentPath] = set()
        self.written: dict[DocumentPath, str] = {}
        self._document = document
        self._environ = environ
        self._problems = problems
        self._inserted = 0

    def substitute(self, value: Any, path: DocumentPath) -> Any:
        match value:
            case str():
                return self._text(value, path) if "$" in value else value
            case dict():
                return _reuse(value, {key: self.substitute(each, (*path, key)) for key, each in value.items()})
            case list():
                return _reuse(value, [self.substitute(each, (*path, index)) for index, each in enumerate(value)])
        return value

    def _text(self, text: str, path: DocumentPath) -> str:
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

    def _replacement(self, match: re.Match[str], path: DocumentPath) -> str:
        if match[1] is None:
            return "$"
        if not match[2]:
            raise _Unfilled("env-syntax", "'${' is not closed", "close it with '}', or write $${ for the text itself")
        reference = _REFERENCE.fullmatch(match[1])
        if reference is None:
            raise _Unfilled("env-syntax", f"{truncate_line(match[0])} does not name an environment variable", _FORMS)
        name, form, rest = reference.groups()
        if rest is not None and "${" in rest.replace("$$", ""):
            raise _Unfilled("env-syntax", "nested variables are not supported", "set one variable to the whole value")
        default = rest.replace("$$", "$") if form == "-" else None
        at = self._position(match.string, path, offset=match.start(), width=len(match[0]))
        self.uses.append(EnvUse(name, at, name in self._environ, default))
        return self._look_up(name, default, demand=rest if form == "?" else None)

    def _look_up(self, name: str, default: str | None, *, demand: str | None) -> str:
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
        if self._inserted > MAX_BYTES:  # a long value used in many places could exhaust the memory
            raise _Unfilled(
                "env-limit", "the variables of this document expand to more than 1 MiB", "use fewer or shorter ones"
            )
        return value

    def _position(self, text: str, path: DocumentPath, *, offset: int, width: int) -> Position:
        """Return the position of the `${` if the file has the text without escapes, else of the whole value."""
        whole = self._document.position(path)
        quotes = whole.width - len(text)
        if path not in self._document.positions or quotes not in (0, 2):
            return whole
        return replace(whole, column=whole.column + quotes // 2 + offset, width=width)


def _reuse(original: Any, copy: Any) -> Any:
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
