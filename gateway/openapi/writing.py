"""From arguments to the parts of a request: target, headers, cookies and body, each argument in its own place only.

Nothing is joined and parsed again, and no argument can name a place: keys that would become names of their own are
refused where another parameter, or a credential, has that name.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from gateway.openapi.bodies import written_body
from gateway.openapi.refusals import NotWritable
from gateway.openapi.requests import Parameter, Request
from gateway.openapi.styles import Pair, changes_the_path, in_header, in_path, in_query, sendable

_PLACEHOLDER: Final = re.compile(r"\{([^{}/]+)\}")
_LITERAL: Final = "/:@!$&'()*+,;=-._~"
"""A percent sign of the document's own path is encoded once more: paths of documents are not encoded."""


@dataclass(frozen=True, slots=True)
class Written:
    """`target` is path and query, without what the server's address begins with; everything in it is encoded."""

    path: str
    query: tuple[Pair, ...]
    headers: Mapping[str, str]
    cookies: tuple[Pair, ...]
    body: bytes | None = field(repr=False)

    def target(self, extra: Collection[Pair] = ()) -> str:
        pairs = [f"{name}={value}" for name, value in (*self.query, *extra)]
        return self.path + (f"?{'&'.join(pairs)}" if pairs else "")


def written(request: Request, args: Mapping[str, Any], *, taken: Collection[str] = ()) -> Written:
    """Raises `NotWritable`. `taken` are names in the query and of cookies that belong to credentials."""
    by_place: dict[str, list[Parameter]] = {"path": [], "query": [], "header": [], "cookie": []}
    for parameter in request.parameters:
        by_place[parameter.place].append(parameter)
    headers = {
        each.name.lower(): in_header(each, args[each.argument])
        for each in by_place["header"]
        if args.get(each.argument) is not None
    }
    body, content_type = written_body(request.body, args)
    if content_type is not None:
        headers["content-type"] = content_type
    headers["accept"] = request.accept
    return Written(
        _path(request.path, {each.name: each for each in by_place["path"]}, args),
        tuple(_pairs(by_place["query"], args, taken=taken)),
        headers,
        tuple(_pairs(by_place["cookie"], args, taken=taken)),
        body,
    )


def cookie_header(pairs: Collection[Pair]) -> str | None:
    return "; ".join(f"{name}={sendable(name, value)}" for name, value in pairs) or None


def placeholders(path: str) -> list[str]:
    return _PLACEHOLDER.findall(path)


def _path(path: str, parameters: Mapping[str, Parameter], args: Mapping[str, Any]) -> str:
    return "/".join(_segment(segment, parameters, args) for segment in path.split("/"))


def _segment(segment: str, parameters: Mapping[str, Parameter], args: Mapping[str, Any]) -> str:
    pieces = _PLACEHOLDER.split(segment)
    if len(pieces) == 1:
        return quote(segment, safe=_LITERAL)
    last = ""
    for index, piece in enumerate(pieces):
        if index % 2:
            parameter = parameters[piece]
            last = parameter.argument
            pieces[index] = in_path(parameter, args.get(parameter.argument))
        else:
            pieces[index] = quote(piece, safe=_LITERAL)
    filled = "".join(pieces)
    if changes_the_path(filled):
        raise NotWritable(last, "would change the path it is part of")
    return filled


def _pairs(parameters: list[Parameter], args: Mapping[str, Any], *, taken: Collection[str]) -> list[Pair]:
    """All pairs of a place. Keys of an exploded object are names, and must not be those of somebody else."""
    found: list[Pair] = []
    reserved = {quote(each.name, safe=""): each.argument for each in parameters}
    credentials = {quote(name, safe="") for name in taken}
    for parameter in parameters:
        pairs = in_query(parameter, args.get(parameter.argument))
        for name, _ in pairs:
            if name in credentials or reserved.get(name, parameter.argument) != parameter.argument:
                raise NotWritable(parameter.argument, "has a key that is the name of another parameter")
        found += pairs
    return found
