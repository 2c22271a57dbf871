"""Arguments that a schema accepts: the required ones and a few more. Derived from the schemas alone."""

import re
from typing import Any, Final

HEX: Final = "0123456789abcdef" * 4
LIKELY: Final = (
    *("abc", "1", "1.0.0", "AAAA", HEX[:40], HEX, f"sha256:{HEX}", "refs/heads/main", "https://a.example/b"),
    *("ssh-ed25519 AAAA", "2026-11-16T10:00:00Z", "a@b.example", "#abcdef"),
)
"""Texts for patterns: the first that matches is used."""


def arguments_for(schema: dict[str, Any], *, optional: bool) -> dict[str, Any]:
    """An object with every required property; with `optional`, also every scalar one and every list of scalars."""
    required = schema.get("required", ())
    found: dict[str, Any] = {}
    for name, each in schema.get("properties", {}).items():
        if name in required or (optional and _is_flat(each, schema)):
            found[name] = sample(each, schema)
    return found


def sample(node: Any, root: dict[str, Any], depth: int = 0) -> Any:
    if not isinstance(node, dict) or depth > 12:
        return "x"
    if "$ref" in node:
        return sample(_found(node["$ref"], root), root, depth + 1)
    if "const" in node:
        return node["const"]
    if "enum" in node:
        return node["enum"][0]
    if "allOf" in node:
        parts = [sample(each, root, depth + 1) for each in node["allOf"]]
        objects = [part for part in parts if isinstance(part, dict)]
        return {key: value for part in objects for key, value in part.items()} if objects else parts[0]
    for keyword in ("oneOf", "anyOf"):
        if keyword in node:
            return sample(_join(node, _resolve(node[keyword][0], root)), root, depth + 1)
    return _by_type(node, root, depth)


def _join(node: dict[str, Any], alternative: dict[str, Any]) -> dict[str, Any]:
    """An alternative merged with its sibling keywords."""
    joined = {**{key: node[key] for key in ("type",) if key in node}, **alternative}
    for key, empty in (("properties", {}), ("required", [])):
        if key in node or key in alternative:
            both = node.get(key, empty), alternative.get(key, empty)
            joined[key] = {**both[0], **_without_empty(both[1])} if key == "properties" else [*both[0], *both[1]]
    return joined


def _without_empty(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in properties.items() if each}


def _resolve(node: Any, root: dict[str, Any]) -> dict[str, Any]:
    while isinstance(node, dict) and "$ref" in node:
        node = _found(node["$ref"], root)
    return node if isinstance(node, dict) else {}


def _by_type(node: dict[str, Any], root: dict[str, Any], depth: int) -> Any:
    kind = node.get("type", "object" if "properties" in node else None)
    match kind[0] if isinstance(kind, list) else kind:
        case "integer":
            return int(node.get("minimum", node.get("exclusiveMinimum", 0) + 1 if "exclusiveMinimum" in node else 1))
        case "number":
            return float(node.get("minimum", 1)) + 0.5
        case "boolean":
            return True
        case "array":
            count = max(int(node.get("minItems", 0)), 1)
            items = [sample(node.get("items", {}), root, depth + 1) for _ in range(count)]
            return [
                f"{item}{n}" if isinstance(item, str) and "enum" not in node.get("items", {}) and count > 1 else item
                for n, item in enumerate(items)
            ]
        case "object":
            return {
                name: sample(node.get("properties", {}).get(name, {}), root, depth + 1)
                for name in node.get("required", ())
            }
        case "null":
            return None
        case _:
            return _text(node)


def _text(node: dict[str, Any]) -> str:
    text = "a b/ü&=#%?"  # all characters with a meaning in an address
    if "pattern" in node:
        least, most = int(node.get("minLength", 0)), int(node.get("maxLength", 1000))
        fitting = [each for each in LIKELY if re.search(node["pattern"], each) and least <= len(each) <= most]
        return fitting[0] if fitting else "abc"
    if node.get("contentEncoding") == "base64":
        text = "AAE="
    longest = int(node.get("maxLength", len(text)))
    return text[:longest].ljust(int(node.get("minLength", 0)), "x")


def _is_flat(node: Any, root: dict[str, Any]) -> bool:
    if isinstance(node, dict) and "$ref" in node:
        node = _found(node["$ref"], root)
    if not isinstance(node, dict):
        return False
    if node.get("type") == "array":
        return _is_flat(node.get("items"), root)
    return node.get("type") in ("string", "integer", "boolean", "number")


def _found(reference: str, root: dict[str, Any]) -> Any:
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found
