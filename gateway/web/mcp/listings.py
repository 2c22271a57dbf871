"""Lists of tools as bytes: made once per revision and caller's names, cut into pages, told in each revision's words."""

import base64
import binascii
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final

import orjson

from gateway.advertising import described
from gateway.core.definitions import shaped
from gateway.governance.principals import Principal
from gateway.serving.content import output_schema
from gateway.serving.published import Published
from gateway.serving.service import Listed, Service
from gateway.serving.turns import Turn
from gateway.snapshot import DeclaredTool
from gateway.web.mcp.param_headers import MarkedArgument, marked_arguments
from gateway.web.mcp.protocol import INVALID_PARAMS, MODERN, ProtocolError

PAGE: Final = 500
CACHED_CALLERS: Final = 512


@dataclass(frozen=True, slots=True)
class Told:
    """Tools in the order of their names, each as JSON."""

    names: Sequence[str]
    tools: Sequence[bytes]
    _pages: dict[int, bytes] = field(default_factory=dict)

    def page(self, cursor: Any, size: int = PAGE) -> tuple[bytes, str | None]:
        """The array of one page, and the cursor of the next. Raises for a cursor that is none of ours."""
        start = 0 if cursor is None else bisect_right(self.names, cursor_name(cursor))
        page = self._pages.get(start)
        if page is None:
            page = b"[%b]" % b",".join(self.tools[start : start + size])
            if start % size == 0:  # where pages begin, unless somebody makes up cursors
                self._pages[start] = page
        more = start + size < len(self.tools)
        return page, _cursor(self.names[start + size - 1]) if more else None


class Listings:
    """The lists of one catalogue, as each caller may see them."""

    def __init__(self, service: Service, catalogue: str) -> None:
        self._service = service
        self._catalogue = catalogue
        self._published: Published | None = None
        self._told: OrderedDict[tuple[frozenset[str], str, date], Told] = OrderedDict()
        self._marked: dict[str, tuple[MarkedArgument, ...]] = {}
        self._declared: dict[tuple[str, str], bytes] = {}
        """Declared tools as JSON, by name and revision of the protocol."""

    def told(self, principal: Principal, version: str) -> Told:
        """Everything a caller is shown, without regard to earlier calls."""
        self._refresh()
        # the day is part of it: a deprecated tool has a last one
        key = (principal.names, version, datetime.now(UTC).date())
        found = self._told.get(key)
        if found is None:
            found = self._told[key] = self._made(self._service.listed(principal, self._catalogue), version)
            if len(self._told) > CACHED_CALLERS:
                self._told.popitem(last=False)
        else:
            self._told.move_to_end(key)
        return found

    def told_in(self, turn: Turn, version: str) -> Told:
        """The same within a turn: its query tools know what there is to ask about."""
        self._refresh()
        return self._made(self._service.listed(turn.principal, self._catalogue, turn=turn), version)

    def marked(self, name: str) -> tuple[MarkedArgument, ...]:
        """Arguments of a tool that have a header of their own."""
        published = self._service.published
        if published is not self._published:
            self._refresh()
        found = self._marked.get(name)
        if found is None:
            tool = published.tool(self._catalogue, name)
            if tool is None:  # nobody can fill the table with names
                return ()
            found = self._marked[name] = marked_arguments(_plain(tool.input_schema))
        return found

    def _refresh(self) -> None:
        published = self._service.published
        if published is not self._published:
            self._published = published
            self._told.clear()
            self._marked.clear()
            self._declared.clear()

    def _made(self, listed: Sequence[Listed], version: str) -> Told:
        told = sorted(((each.name, self._json(each, version)) for each in listed), key=lambda pair: pair[0])
        return Told([name for name, _ in told], [tool for _, tool in told])

    def _json(self, listed: Listed, version: str) -> bytes:
        if listed.declared is None:
            return orjson.dumps(shaped(listed.tool.describe(), "mcp"))
        key = (listed.name, version)
        if key not in self._declared:
            self._declared[key] = orjson.dumps(self._described(listed, listed.declared, version))
        return self._declared[key]

    def _described(self, listed: Listed, declared: DeclaredTool, version: str) -> dict[str, Any]:
        published = self._service.published
        catalogue = published.snapshot.catalogues[self._catalogue]
        known = described(listed.name, declared, catalogue)
        found = _plain(shaped(listed.tool.describe() if known is None else known, "mcp"))
        found["inputSchema"] = {**_dialect(published, declared), **found["inputSchema"]}
        schema = output_schema(published, self._catalogue, declared)
        return _in_words_of(version, found if schema is None else {**found, "outputSchema": _plain(schema)})


def cursor_name(cursor: Any) -> str:
    """The name that a page ended with; the empty cursor stands before all of them."""
    try:
        return base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True).decode()
    except (AttributeError, UnicodeError, binascii.Error):
        raise ProtocolError(INVALID_PARAMS, "the cursor is not one of this list") from None


def _cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _dialect(published: Published, tool: DeclaredTool) -> dict[str, str]:
    """The `$schema` that a document gives its input, which says nothing to us: there is one dialect."""
    if tool.dialect is not None:
        return {"$schema": tool.dialect}
    document = published.snapshot.documents.get("Tool", {}).get(tool.name)
    given = document.data.get("spec", {}).get("input") if document is not None else None
    schema = given.get("schema") if isinstance(given, Mapping) else None
    return {"$schema": schema["$schema"]} if isinstance(schema, Mapping) and "$schema" in schema else {}


def _in_words_of(version: str, tool: dict[str, Any]) -> dict[str, Any]:
    """The fields that a revision knows."""
    if version == MODERN:
        return tool
    left_out = {"title", "outputSchema"} if version == "2025-03-26" else set()
    if tool.get("outputSchema", {}).get("type") != "object":
        left_out.add("outputSchema")
    return {key: value for key, value in tool.items() if key not in left_out}


def _plain(value: Any) -> Any:
    """Documents are frozen; the serialiser takes plain containers."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
