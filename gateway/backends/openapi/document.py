"""Parse an OpenAPI document into plain values, bounded in size and depth, and resolve its references.

References are resolved inside the document only; nothing is fetched. Names and descriptions come from third parties, so
they are bounded and stripped of control characters.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal
from urllib.parse import unquote

import orjson

from gateway.errors import YamlParseError
from gateway.model import TooManyValues, read_json


class OpenApiInvalid(Exception):
    """The document as a whole cannot be used. The message is one line; `help` is advice."""

    def __init__(self, message: str, *, help: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.help = help


class UnusableOperation(Exception):
    """A part of the document cannot be used, so its operation does not become a tool."""


class InvalidArgument(Exception):
    """A value of an argument cannot be serialized."""

    def __init__(self, argument: str, what: str) -> None:
        super().__init__(f"argument {argument[:80]!r} {what}")


_MAX_CHAIN: Final = 32


class ReferenceResolver:
    """Resolves the `$ref`s of the document."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root

    def resolve(self, node: Any) -> dict[str, Any]:
        """Return the object that a node is or refers to. Raise `UnusableOperation` if there is none."""
        for _ in range(_MAX_CHAIN):
            if not isinstance(node, dict):
                raise UnusableOperation("a mapping is expected where there is none")
            if "$ref" not in node:
                return node
            node = self.get(node["$ref"])
        raise UnusableOperation("references lead in a circle")

    def get(self, reference: Any) -> Any:
        """Return the node at a local pointer (`#/components/schemas/Pet`)."""
        found: Any = self._root
        for step in _parse_pointer(reference):
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isdecimal() and len(step) < 7 and int(step) < len(found):
                found = found[int(step)]
            else:
                raise UnusableOperation(f"the reference {escape_text(reference)} leads nowhere")
        return found


def escape_text(text: Any) -> str:
    """Return third-party text shortened and with escapes for invisible characters."""
    return ascii(text if len(str(text)) <= 80 else f"{str(text)[:79]}…")


def _parse_pointer(reference: Any) -> list[str]:
    if not isinstance(reference, str):
        raise UnusableOperation("a reference is not a text")
    if not reference.startswith("#"):
        raise UnusableOperation(f"the reference {escape_text(reference)} leads out of the document")
    if reference == "#":
        return []
    if not reference.startswith("#/"):
        raise UnusableOperation(f"the reference {escape_text(reference)} is not a path from the root of the document")
    return [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference[2:].split("/")]


MAX_BYTES: Final = 32 << 20
MAX_VALUES: Final = 2_000_000
MAX_YAML_BYTES: Final = 8 << 20
"""Lower than `MAX_BYTES` because YAML is parsed a hundred times slower than JSON."""

Version = Literal["3.0", "3.1"]

_VERSION: Final = re.compile(r"(3\.[01])\.[0-9]+(?:-[A-Za-z0-9.]+)?")


@dataclass(frozen=True, slots=True)
class OpenApiDocument:
    """A parsed document with a known version and a mapping of paths."""

    version: Version
    root: dict[str, Any]

    @property
    def paths(self) -> dict[str, Any]:
        paths: dict[str, Any] = self.root.get("paths") or {}
        return paths


def read_document(data: bytes) -> OpenApiDocument:
    """Raise `OpenApiInvalid` for anything but an OpenAPI document of version 3.0 or 3.1, in JSON or YAML."""
    if len(data) > MAX_BYTES:
        raise OpenApiInvalid(
            f"the OpenAPI document is larger than {MAX_BYTES >> 20} MiB", help="take a part of it, or the JSON form"
        )
    root = _parse(data)
    if not isinstance(root, dict):
        raise OpenApiInvalid("the OpenAPI document is not a mapping", help="its first key is 'openapi'")
    version = _read_version(root)
    if not isinstance(root.get("paths") or {}, dict):
        raise OpenApiInvalid("the 'paths' of the OpenAPI document are not a mapping")
    return OpenApiDocument(version, root)


def _parse(data: bytes) -> Any:
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data.lstrip()[:1] == b"{":
        try:
            return read_json(data, MAX_VALUES)
        except TooManyValues as error:
            raise OpenApiInvalid(f"the OpenAPI document: {error}", help="take a part of it") from None
        except orjson.JSONDecodeError as error:
            # YAML flow mappings begin with a brace as well, but no real document is written so
            raise OpenApiInvalid(f"the OpenAPI document is not JSON: {_to_one_line(error.msg)}") from error
    if len(data) > MAX_YAML_BYTES:
        raise OpenApiInvalid(
            f"the OpenAPI document is YAML of more than {MAX_YAML_BYTES >> 20} MiB", help="convert it to JSON"
        )
    return _parse_yaml(data)


def _parse_yaml(data: bytes) -> Any:
    from gateway.artifacts import parse_yaml  # most documents are JSON, and PyYAML is slow to load

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OpenApiInvalid("the OpenAPI document is not UTF-8 text", help="save it as UTF-8") from error
    try:
        documents = parse_yaml(text, single=True)
    except (YamlParseError, RecursionError) as error:
        raise OpenApiInvalid(f"the OpenAPI document is not YAML: {_to_one_line(str(error))}") from error
    return documents[0] if documents else None


def _read_version(root: dict[str, Any]) -> Version:
    if "swagger" in root:
        raise OpenApiInvalid("this is Swagger 2.0, which is not supported", help="convert it to OpenAPI 3")
    version = root.get("openapi")
    found = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if found is None:
        shown = repr(version[:20]) if isinstance(version, str) else "missing or no text"
        raise OpenApiInvalid(f"the 'openapi' version is {shown}", help="use a document of OpenAPI 3.0 or 3.1")
    return "3.0" if found[1] == "3.0" else "3.1"


def _to_one_line(text: str) -> str:
    return " ".join(text.split())[:200]


MAX_NAME: Final = 64
"""Maximum length of tool and argument names that all model providers accept."""

MAX_TEXT: Final = 4096

_OTHER: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def slug(text: str) -> str:
    """Return a name of letters, digits, `_`, `-` and `.`; a long one is cut and ends in a digest of the whole."""
    plain = _OTHER.sub("_", text).strip("_.-")
    if len(plain) <= MAX_NAME:
        return plain
    return f"{plain[: MAX_NAME - 9]}_{sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def clean_text(value: Any, *, limit: int = MAX_TEXT) -> str:
    """Return text without control characters, cut to the limit; empty if the value is not text."""
    if not isinstance(value, str):
        return ""
    plain = _CONTROL.sub("", value.replace("\r\n", "\n")).encode("utf-8", "replace").decode("utf-8").strip()
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"
