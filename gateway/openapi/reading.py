"""The bytes of an OpenAPI document as plain values, bounded in size and depth. What they mean is not asked here."""

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from gateway.core.bounded_json import TooManyValues, read_json
from gateway.errors import YamlParseError
from gateway.openapi.refusals import OpenApiInvalid

MAX_BYTES: Final = 32 << 20
MAX_VALUES: Final = 2_000_000
MAX_YAML_BYTES: Final = 8 << 20
"""YAML is read a hundred times slower than JSON."""

Version = Literal["3.0", "3.1"]

_VERSION: Final = re.compile(r"(3\.[01])\.[0-9]+(?:-[A-Za-z0-9.]+)?")


@dataclass(frozen=True, slots=True)
class Document:
    """A document whose outline is right."""

    version: Version
    root: dict[str, Any]

    @property
    def paths(self) -> dict[str, Any]:
        paths: dict[str, Any] = self.root.get("paths") or {}
        return paths


def read(data: bytes) -> Document:
    """Raises `OpenApiInvalid` for anything but an OpenAPI document of version 3.0 or 3.1, in JSON or YAML."""
    if len(data) > MAX_BYTES:
        raise OpenApiInvalid(
            f"the OpenAPI document is larger than {MAX_BYTES >> 20} MiB", help="take a part of it, or the JSON form"
        )
    root = _parsed(data)
    if not isinstance(root, dict):
        raise OpenApiInvalid("the OpenAPI document is not a mapping", help="its first key is 'openapi'")
    version = _version(root)
    if not isinstance(root.get("paths") or {}, dict):
        raise OpenApiInvalid("the 'paths' of the OpenAPI document are not a mapping")
    return Document(version, root)


def _parsed(data: bytes) -> Any:
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data.lstrip()[:1] == b"{":
        try:
            return read_json(data, MAX_VALUES)
        except TooManyValues as error:
            raise OpenApiInvalid(f"the OpenAPI document: {error}", help="take a part of it") from None
        except orjson.JSONDecodeError as error:
            # flow mappings of YAML begin with a brace, too, but nobody writes a document so
            raise OpenApiInvalid(f"the OpenAPI document is not JSON: {_one_line(error.msg)}") from error
    if len(data) > MAX_YAML_BYTES:
        raise OpenApiInvalid(
            f"the OpenAPI document is YAML of more than {MAX_YAML_BYTES >> 20} MiB", help="convert it to JSON"
        )
    return _parsed_yaml(data)


def _parsed_yaml(data: bytes) -> Any:
    from gateway.formats.yaml_text import parse_documents  # most documents are JSON, and PyYAML is slow to load

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OpenApiInvalid("the OpenAPI document is not UTF-8 text", help="save it as UTF-8") from error
    try:
        documents = parse_documents(text, single=True)
    except (YamlParseError, RecursionError) as error:
        raise OpenApiInvalid(f"the OpenAPI document is not YAML: {_one_line(str(error))}") from error
    return documents[0] if documents else None


def _version(root: dict[str, Any]) -> Version:
    if "swagger" in root:
        raise OpenApiInvalid("this is Swagger 2.0, which is not read", help="convert it to OpenAPI 3")
    version = root.get("openapi")
    found = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if found is None:
        shown = repr(version[:20]) if isinstance(version, str) else "missing or no text"
        raise OpenApiInvalid(f"the 'openapi' version is {shown}", help="use a document of OpenAPI 3.0 or 3.1")
    return "3.0" if found[1] == "3.0" else "3.1"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
