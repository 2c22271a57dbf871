"""Entries for other systems: JSON lines that can be verified again, CEF and OCSF for whoever collects events.

At least once is enough for a receiver: shard and number of an entry never change, so what comes twice can be told.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.audit.cef import cef_line
from gateway.audit.chain import Row
from gateway.audit.lines import LogUnreadable, line_of
from gateway.audit.ocsf import ocsf_line
from gateway.audit.statements import parsed_body

Format = Literal["jsonl", "cef", "ocsf"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which entries; what is `None` does not matter. Moments are microseconds, `until` is not included.

    A tool is meant by the name it was called by, or by what policies know it as.
    """

    since: int | None = None
    until: int | None = None
    tenant: str | None = None
    tool: str | None = None

    @property
    def is_everything(self) -> bool:
        return self == EVERYTHING

    def has(self, body: Mapping[str, Any]) -> bool:
        if self.since is not None and body["at"] < self.since:
            return False
        if self.until is not None and body["at"] >= self.until:
            return False
        if self.tenant is not None and _part(body, "caller").get("tenant") != self.tenant:
            return False
        target = _part(body, "target")
        return self.tool is None or self.tool in (target.get("tool"), target.get("identity"))


EVERYTHING: Final = Selection()


def exported(
    rows: Iterable[Row], format: Format, *, version: str, selection: Selection = EVERYTHING
) -> Iterator[bytes]:
    """A line per entry, with its end. `version` is that of the gateway. Raises `LogUnreadable` for what is no entry."""
    if format == "jsonl" and selection.is_everything:
        yield from map(line_of, rows)  # bytes as they are, also of entries that are damaged: verify tells
        return
    line = _LINES[format]
    for row in rows:
        body = parsed_body(row.body)
        if not isinstance(body.get("at"), int) or not isinstance(body.get("event"), str):
            raise LogUnreadable(
                f"entry {row.shard}:{row.seq} cannot be read", help="run gateway audit verify on the same log"
            )
        if selection.has(body):
            yield line(row, body, version)


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = body.get(name)
    return part if isinstance(part, dict) else {}


def _json_line(row: Row, body: Mapping[str, Any], version: str) -> bytes:
    return line_of(row)


_LINES: Final[Mapping[Format, Callable[[Row, Mapping[str, Any], str], bytes]]] = {
    "jsonl": _json_line,
    "cef": cef_line,
    "ocsf": ocsf_line,
}
