"""Documentation of kinds and fields as plain text: `tool.spec.backend` → what stands there and what it means.

A path goes through lists and free keys without naming an entry. A variant may be named by its tag
(`tool.spec.backend.http.url`) or left out (`tool.spec.backend.url`).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from gateway.config.kinds import KINDS
from gateway.config.schema import written
from gateway.config.shapes import Entries, Items, Object, Part, Scalar, Shape, Variants, described, fields_of
from gateway.errors import GatewayError
from gateway.governance.diagnostics import did_you_mean

_INDENT = "  "


class UnknownField(GatewayError):
    """No kind or field has that name."""

    code = "E_UNKNOWN_FIELD"
    status = 404
    default_message: ClassVar[str] = "there is no such field"


@dataclass(frozen=True, slots=True)
class _Found:
    """What a path leads to. A kind and a variant have no `part`, because no field leads to them."""

    title: str
    summary: str
    shape: Shape
    part: Part | None = None


def explain(path: str, recursive: bool = False) -> str:
    """The documentation of a kind or a field; of all kinds for an empty path.

    A field that several variants have in different ways is explained once for each. Raises `UnknownField`, with the
    nearest name where there is one.
    """
    kind_name, *names = [name for name in path.replace("[]", "").split(".") if name] or [""]
    if not kind_name:
        return _all_kinds()
    found = [_find_kind(kind_name)]
    for name in names:
        found = [below for each in found for below in _step(each, name)] or _refuse(found, name)
    return "\n\n".join("\n".join(_page(each, recursive)).rstrip() for each in found) + "\n"


def _all_kinds() -> str:
    width = max(map(len, KINDS))
    return "".join(f"{kind.name:{width}}  {kind.summary}\n" for kind in KINDS.values())


def _find_kind(name: str) -> _Found:
    folded = name.casefold()
    for kind in KINDS.values():
        if folded in (kind.name.casefold(), kind.plural):
            return _Found(kind.name, kind.summary, Object(kind.model))
    known = ", ".join(KINDS)
    raise UnknownField(f"there is no kind {name[:60]!r}", help=did_you_mean(name, KINDS) or f"kinds: {known}")


def _step(found: _Found, name: str) -> list[_Found]:
    match _inside(found.shape):
        case Object(model=model) if name in fields_of(model):
            part = fields_of(model)[name]
            return [_Found(f"{found.title}.{name}", part.description, part.shape, part)]
        case Variants(shapes=shapes) as variants:
            below = [_Found(_named(found, variants, tag), _summary(each), each) for tag, each in shapes]
            if variants.tag and (chosen := [each for (tag, _), each in zip(shapes, below, strict=True) if tag == name]):
                return chosen
            return [deeper for each in below for deeper in _step(each, name)]
        case _:
            return []


def _named(found: _Found, variants: Variants, tag: str) -> str:
    return f"{found.title}.{tag}" if variants.tag else found.title


def _refuse(found: list[_Found], name: str) -> list[_Found]:
    known = list(dict.fromkeys(field for each in found for field in _known(each.shape)))
    help = did_you_mean(name, known) or (f"fields: {', '.join(known)}" if known else "it has no fields")
    raise UnknownField(f"{name[:60]!r} is not a field of {found[0].title}", help=help)


def _known(shape: Shape) -> Iterator[str]:
    match _inside(shape):
        case Object(model=model):
            yield from fields_of(model)
        case Variants(tag=tag, shapes=shapes):
            yield from (name for name, _ in shapes if tag)
            for _, each in shapes:
                yield from _known(each)
        case _:
            return


def _inside(shape: Shape) -> Shape:
    """Behind lists and free keys."""
    match shape:
        case Items(item=inner) | Entries(value=inner):
            return _inside(inner)
        case _:
            return shape


def _summary(shape: Shape) -> str:
    match _inside(shape):
        case Object(model=model):
            return (model.__doc__ or "").strip()
        case _:
            return ""


def _page(found: _Found, recursive: bool) -> Iterator[str]:
    yield found.title
    yield ""
    yield f"{_INDENT}{found.summary}"
    yield ""
    if found.part is not None:
        yield from _facts(found.part)
        yield ""
    yield from _contents(found.shape, recursive, depth=0)


def _facts(part: Part) -> Iterator[str]:
    yield f"{_INDENT}type:     {described(part.shape)}"
    yield f"{_INDENT}required: {'yes' if part.required else 'no'}"
    if (default := _default(part)) is not None:
        yield f"{_INDENT}default:  {default}"
    if (scalar := _inside(part.shape)) and isinstance(scalar, Scalar) and scalar.wanted:
        yield f"{_INDENT}how:      {scalar.wanted}"


def _default(part: Part) -> str | None:
    value: Any = written(part.default)
    return None if value is None else value if isinstance(value, str) else json.dumps(value)


def _contents(shape: Shape, recursive: bool, depth: int) -> Iterator[str]:
    margin = _INDENT * depth
    match _inside(shape):
        case Object(model=model):
            yield f"{margin}fields:"
            for part in fields_of(model).values():
                yield from _entry(part, recursive, depth + 1)
        case Variants(tag=tag, shapes=shapes):
            yield f"{margin}one of, by {tag}:" if tag else f"{margin}one of:"
            for name, each in shapes:
                yield f"{margin}{_INDENT}{name if tag else described(each)}: {_summary(each)}".removesuffix(": ")
                if recursive:
                    yield from _contents(each, recursive, depth + 2)
        case _:
            return


def _entry(part: Part, recursive: bool, depth: int) -> Iterator[str]:
    margin = _INDENT * depth
    default = _default(part)
    state = "required" if part.required else f"default {default}" if default is not None else "optional"
    yield f"{margin}{part.name} <{described(part.shape)}> {state}"
    yield f"{margin}{_INDENT}{part.description}"
    if recursive:
        yield from _contents(part.shape, recursive, depth + 1)
