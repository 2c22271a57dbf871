"""Mutants of working projects: the shipped example and the starter, each broken in a way that its seed decides.

A mutation edits either the parsed documents of a file (and writes them again) or its bytes. The same seed gives the
same mutant on every machine.
"""

import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import yaml

from gateway.registries.imported_definition import KINDS, InvalidDefinition, UpstreamDefinition
from tests.support.paths import ROOT

STARTER: Final = ROOT / "gateway/cli/templates/project"
ENVIRONMENTS: Final = (None, None, "dev", "desk", "operator", "prod", "nowhere")

Files = Mapping[str, bytes]
Random = random.Random

SCHEMA_KEYWORDS: Final = (
    *("type", "enum", "const", "properties", "required", "items", "prefixItems", "$ref", "$defs", "pattern", "allOf"),
    *("anyOf", "oneOf", "not", "if", "then", "else", "additionalProperties", "unevaluatedProperties", "minimum"),
    *("maxLength", "minItems", "default", "$schema", "$id", "$anchor", "dependentSchemas", "patternProperties"),
    *("propertyNames", "contains", "format", "multipleOf", "uniqueItems", "dependencies", "$dynamicRef", "examples"),
)


def _nested(depth: int, *, as_list: bool) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value] if as_list else {"a": value}
    return value


_SCHEMA_PLACES: Final = ("schema", "inputSchema", "outputSchema", "resolution", "parameters", "schemas", "definition")
_SCALARS: Final = (
    *(None, True, False, 0, 1, -1, 5, 2**31, 2**53 + 1, 10**30, -(10**400), 0.5, -1.5, 1e308),
    *(float("nan"), float("inf"), float("-inf")),
    *("", " ", "*", "**", "~", "null", "true", "5", "1e5", "0x1F", "1_000", "12:30:00", "2026-11-16", "2026-02-30"),
    *(
        "é",
        "е",
        "\u202e",
        "\u0000",
        "\u0007",
        "\ufeff",
        "\u2028",
        "\U0001f600",
        "e\u0301",
        "\x85",
        "\ud7ff",
        "A" * 20_000,
    ),
    *("${NOWHERE}", "${NOWHERE:-}", "${GATEWAY_DATA_DIR}", "$$", "${", "${}", "${A:-${B}}", "$NOWHERE", "${LONG}"),
    *("role:security", "role:Security", "user:you", "payment_refund", "wiki.search_pages", "support", "internal"),
    *("args.amount > 500", "args.amuont > 5", 'args["x"] == 1', "1 +", "a.b.c", "true", "turn.calls.all(c, c.age > 1)"),
    *(
        "10s",
        "-5m",
        "1000000000000000000d",
        "0s",
        "99999999999GiB",
        "08:61",
        "25:00",
        "1.2.3",
        "https://[::1",
        "http://",
    ),
    *(
        "../../etc/passwd",
        "/dev/null",
        ".",
        "a\nb",
        "%",
        "{name}",
        "{",
        "#/$defs/a",
        "#",
        "(?=a)(",
        "(a+)+$",
        "[",
        "\\",
    ),
    *("gateway.examples.pricing:quote", "os:system", "gateway.examples.pricing:", ":x", "$..*", "$[?(@.a)]", "$["),
)
_STRUCTURES: Final[tuple[Any, ...]] = (
    *([], {}, [None], [[]], [{}], {"a": None}, {"": ""}, ["x", "x"], {"a": {"b": {"c": 1}}}, [1, "a", None, {}]),
    *({"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, {"type": None}, {"type": 5}),
    *({"type": True}, {"type": ["string", 5]}, {"type": []}, {"enum": 5}, {"properties": []}, {"required": "a"}),
    *({"allOf": {}}, {"items": 5}, {"pattern": "("}, {"type": "object", "properties": {"a": 5}}, {"not": {"not": {}}}),
    *(
        {"type": "object", "required": [5, None]},
        {"anyOf": []},
        {"additionalProperties": 5},
        {"default": 1, "type": "null"},
    ),
    *([["string"]], {"fromEnv": "X"}, {"fromFile": "../../x"}, {"type": "none"}, {"type": "jwt"}, list(range(300))),
)
_TEXTS: Final = (
    *(b"\xff\xfe", b"\xef\xbb\xbf", b"\x00", b"\x80\x81", b"\r", b"\t", b"---\n", b"...\n", b"&a ", b"*a", b"*nowhere"),
    *(
        b"!!python/object:os.system ",
        b"!!binary ",
        b"!<tag:x> ",
        b"<<: *a\n",
        b"<<: {a: 1}\n",
        b"? [a]\n: 1\n",
        b"%YAML 1.1\n",
    ),
    *(b"{", b"}", b"[", b"]", b'"', b"'", b"|", b">", b"#", b": ", b"- ", b"@", b"`", b",", b", ,", b"\xe2\x80\xae"),
    *(
        b"\xc2\x85",
        b"${X}",
        b"$$",
        b"a" * 5_000,
        b"[" * 300,
        b"{a: " * 300,
        b"- " * 300,
        b"\n" * 50,
        b"0b1",
        b"=",
        b"~",
    ),
    *(b"&a [*a, *a]", b"&a {b: *a}", b"[&b 1, *b, *b]", b"? ", b"|9\n x", b">-\n\n", b"key: &x value\nother: *x\n"),
)
_ROWS: Final = (
    *("p", "p,", "p,,,,,,", "g, a", "g2, tool:x", "q, a, b", "p, role:a, *, tool:*, invoke, partner, allow, more"),
    *('p, "role:a", *, tool:*, invoke, partner, allow', "p, role:a, *, tool:**, invoke|, partner, maybe", "# only"),
    *(
        "g, role:support, role:support",
        "g, role:reader, role:support",
        "g, user:é, role:reader",
        "g, role:x\u200b, role:reader",
    ),
    *("p, role:Support, support, tool:*, invoke, partner, allow", "p, user:*, *, config, administer, nowhere, deny"),
    *(
        "g, " + "r" * 5_000 + ", role:reader",
        "\x00",
        ",,,,",
        "p; role:a; *; tool:*",
        "=cmd|' /C calc'!A0",
        "g2, class:x, class:x",
    ),
)


@dataclass(frozen=True)
class Mutant:
    """A possibly broken project: `changed` has the new bytes of a file, or `None` for a deleted one."""

    seed: int
    base: str
    environment: str | None
    changed: Mapping[str, bytes | None]
    notes: tuple[str, ...]


@cache
def base_files(base: str) -> Files:
    """All files of a working project, by path."""
    root = ROOT if base == "example" else STARTER
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for folder in ("configs", "policies")
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and ".schema" not in path.parts and path.suffix != ".md"
    }


def mutant(seed: int) -> Mutant:
    """The mutant of a seed: one to three mutations of one of the two projects."""
    choose = Random(seed)
    base = choose.choice(("example", "starter", "starter", "starter"))
    files: dict[str, bytes | None] = dict(base_files(base))
    notes = []
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        notes.append(_mutate(choose, files))
    changed = {path: data for path, data in files.items() if data != base_files(base).get(path)}
    changed |= {path: None for path in base_files(base) if path not in files}
    return Mutant(seed, base, choose.choice(ENVIRONMENTS) if base == "example" else None, changed, tuple(notes))


def _mutate(choose: Random, files: dict[str, bytes | None]) -> str:
    present = sorted(path for path, data in files.items() if data)
    if not present:
        return "nothing is left"
    path = choose.choice(present)
    data = files[path] or b""
    kind = choose.choices(("tree", "bytes", "rows", "file"), (70, 22, 30 if path.endswith(".csv") else 0, 3))[0]
    if kind == "tree":
        edited, note = _mutate_tree(choose, path, data)
        if edited is None:
            kind = "bytes"
        else:
            files[path] = edited
            return f"{path}: {note}"
    if kind == "rows":
        lines = data.decode(errors="replace").split("\n")
        lines.insert(choose.randrange(len(lines) + 1), choose.choice(_ROWS))
        files[path] = "\n".join(lines).encode()
        return f"{path}: row {lines!r:.40}"
    if kind == "file":
        return _mutate_file(choose, files, path)
    files[path], note = _mutate_bytes(choose, data)
    return f"{path}: {note}"


def _mutate_file(choose: Random, files: dict[str, bytes | None], path: str) -> str:
    """Remove, empty, copy, rename or swap a whole file."""
    other = choose.choice(sorted(files))
    match choose.randrange(5):
        case 0:
            del files[path]
        case 1:
            files[path] = b""
        case 2:
            files[f"configs/copy-{choose.randrange(99)}.yaml"] = files[path]
        case 3:
            files[f"{path}.yaml"] = files.pop(path)
        case _:
            files[path], files[other] = files[other], files[path]
    return f"{path}: as a whole, with {other}"


def _mutate_bytes(choose: Random, data: bytes) -> tuple[bytes, str]:
    at = choose.randrange(len(data) + 1)
    until = min(len(data), at + choose.choice((1, 5, 40, 400)))
    match choose.randrange(6):
        case 0:
            return data[:at], f"cut at {at}"
        case 1:
            return data[:at] + data[until:], f"without {at}-{until}"
        case 2:
            return data[:until] + data[at:until] + data[until:], f"{at}-{until} twice"
        case 3:
            encoding = choose.choice(("utf-16", "utf-32", "latin-1", "utf-8-sig"))
            return data.decode(errors="replace").encode(encoding, errors="replace"), encoding
        case 4 if data:
            flipped = bytearray(data)
            for _ in range(choose.choice((1, 4, 16))):
                flipped[choose.randrange(len(flipped))] = choose.randrange(256)
            return bytes(flipped), "bytes flipped"
        case _:
            token = choose.choice(_TEXTS)
            return data[:at] + token + data[at:], f"{token[:20]!r} at {at}"


def _mutate_tree(choose: Random, path: str, data: bytes) -> tuple[bytes | None, str]:
    """Edit parsed documents; `None` if the file is not YAML or JSON any more."""
    is_json = path.endswith(".json")
    try:
        documents = deepcopy(_parsed(data, is_json=is_json))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None, ""
    if path.endswith((".csv", ".conf")) or not documents:
        return None, ""
    places = _places(documents, 0)
    schemas = [place for place in places if place[1] in _SCHEMA_PLACES]
    if schemas and choose.random() < 0.45:
        note = _mutate_schema(choose, *choose.choice(schemas))
    else:
        container, key = choose.choice(places)
        note = choose.choice(_EDITS)(choose, container, key, places)
    if path.endswith(".lock") and choose.random() < 0.7:
        _sign(documents)
    return _dump(choose, documents, note, is_json=is_json)


@lru_cache(maxsize=64)
def _parsed(data: bytes, *, is_json: bool) -> list[Any]:
    """The documents of a file. Most mutations are of files that nothing else has changed before."""
    return [json.loads(data)] if is_json else list(yaml.safe_load_all(data))


def _sign(documents: list[Any]) -> None:
    """Recompute digests, as if an operator had locked the changed definitions."""
    for each in documents:
        given = each.get("definition") if isinstance(each, dict) else None
        with suppress(InvalidDefinition, TypeError, ValueError, RecursionError):
            kind = next(kind for kind in KINDS if kind in each) if isinstance(given, dict) else None
            if kind is not None:
                read = UpstreamDefinition.read("x", given, kind=kind)
                each[kind], each["digest"] = read.name, f"sha256:{read.digest}"


def _dump(choose: Random, documents: list[Any], note: str, *, is_json: bool) -> tuple[bytes | None, str]:
    try:
        if is_json:
            text = json.dumps(documents[0] if documents else None, indent=1)
        else:
            text = yaml.safe_dump_all(documents, allow_unicode=choose.random() < 0.5, sort_keys=False)
    except (yaml.YAMLError, RecursionError, TypeError, ValueError):
        return None, ""
    return text.encode(errors="replace"), note


def _mutate_schema(choose: Random, container: Any, key: Any) -> str:
    """Give some subschema a keyword with an invalid value."""
    places = [(container, key), *_places(container[key], 0)]
    below = [each[name] for each, name in places if isinstance(each[name], dict)]
    if not below:
        return _replace(choose, container, key, places)
    schema = choose.choice(below)
    keyword = choose.choice(list(schema)) if schema and choose.random() < 0.6 else choose.choice(SCHEMA_KEYWORDS)
    schema[keyword] = _value(choose)
    return f"in {key}: {keyword} = {schema[keyword]!r:.60}"


def _places(value: Any, depth: int) -> list[tuple[Any, Any]]:
    """Every place of a tree, as a container and a key in it."""
    if depth > 40:
        return []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(value, key), *_places(value[key], depth + 1)]]


def _value(choose: Random) -> Any:
    match choose.randrange(12):
        case 0:
            return _nested(choose.choice((10, 60, 250, 900)), as_list=choose.random() < 0.5)
        case 1 | 2 | 3 | 4:
            return json.loads(json.dumps(choose.choice(_STRUCTURES)))
        case 5:
            return {choose.choice(SCHEMA_KEYWORDS): choose.choice((*_SCALARS, *_STRUCTURES)) for _ in range(3)}
        case _:
            return choose.choice(_SCALARS)


def _replace(choose: Random, container: Any, key: Any, places: list[tuple[Any, Any]]) -> str:
    container[key] = _value(choose)
    return f"{key} = {container[key]!r:.60}"


def _delete(choose: Random, container: Any, key: Any, places: list[tuple[Any, Any]]) -> str:
    del container[key]
    return f"without {key}"


def _rename(choose: Random, container: Any, key: Any, places: list[tuple[Any, Any]]) -> str:
    if not isinstance(container, dict):
        return _repeat(choose, container, key, places)
    name = choose.choice(
        (f"{key}s", str(key).upper(), str(key)[1:], f"{key} ", "", None, 5, True, choose.choice(SCHEMA_KEYWORDS))
    )
    container[name] = container.pop(key)
    return f"{key} is called {name!r}"


def _repeat(choose: Random, container: Any, key: Any, places: list[tuple[Any, Any]]) -> str:
    """Repeat a value; a container is written as an alias."""
    if isinstance(container, list):
        container.insert(choose.randrange(len(container) + 1), container[key])
    else:
        container[f"{key}2"] = container[key]
    return f"{key} twice"


def _swap(choose: Random, container: Any, key: Any, places: list[tuple[Any, Any]]) -> str:
    """Swap the values of two places; if a value lands inside itself, the writer refuses or aliases it."""
    other, name = choose.choice(places)
    container[key], other[name] = other[name], container[key]
    return f"{key} and {name} swapped"


def _copy(choose: Random, container: Any, key: Any, places: list[tuple[Any, Any]]) -> str:
    other, name = choose.choice(places)
    container[key] = other[name]
    return f"{key} = that of {name}"


def _add(choose: Random, container: Any, key: Any, places: list[tuple[Any, Any]]) -> str:
    value = container[key]
    if isinstance(value, dict):
        name = choose.choice((choose.choice(SCHEMA_KEYWORDS), "x", "name", "spec"))
        value[name] = _value(choose)
        return f"{key}.{name} = {value[name]!r:.60}"
    if isinstance(value, list):
        value.append(_value(choose))
        return f"{key} and {value[-1]!r:.60}"
    return _replace(choose, container, key, places)


def _misspell(choose: Random, container: Any, key: Any, places: list[tuple[Any, Any]]) -> str:
    value = container[key]
    if not isinstance(value, str) or len(value) < 2:
        return _replace(choose, container, key, places)
    at = choose.randrange(len(value) - 1)
    container[key] = choose.choice(
        (
            value[:at] + value[at + 1] + value[at] + value[at + 2 :],
            value[:at] + value[at + 1 :],
            value[:at] + value[at].swapcase() + value[at + 1 :],
            value.replace("e", "е", 1),
            f" {value}",
            f"{value}\u200b",
            value * 40,
            value + choose.choice(_TEXTS).decode(errors="replace"),
        )
    )
    return f"{key} = {container[key]!r:.60}"


_EDITS: Final[tuple[Callable[..., str], ...]] = (
    *(_replace, _replace, _replace, _replace, _delete, _delete, _rename, _repeat, _swap, _copy, _add, _add),
    *(_misspell, _misspell),
)
