"""Export of entries: JSON lines that can be verified again, CEF and OCSF for event collectors.

Delivery at least once is enough: shard and number of an entry never change, so receivers can detect duplicates.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.audit.chain import ChainRow, parse_body
from gateway.audit.event_formats import cef_line, ocsf_line
from gateway.audit.json_lines import UnreadableLog, to_line

Format = Literal["jsonl", "cef", "ocsf"]


@dataclass(frozen=True, slots=True)
class ExportFilter:
    """Selects entries; a field that is `None` matches all. Times are microseconds, `until` is exclusive.

    `tool` is the name a tool was called by, or its identity in policies.
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
        if self.tenant is not None and _get_part(body, "caller").get("tenant") != self.tenant:
            return False
        target = _get_part(body, "target")
        return self.tool is None or self.tool in (target.get("tool"), target.get("identity"))


EVERYTHING: Final = ExportFilter()


def export_entries(
    rows: Iterable[ChainRow], format: Format, *, version: str, selection: ExportFilter = EVERYTHING
) -> Iterator[bytes]:
    """Yield a line per entry. `version` is the gateway's. Raise `UnreadableLog` for a malformed entry."""
    if format == "jsonl" and selection.is_everything:
        yield from map(to_line, rows)  # unchanged bytes, even of damaged entries: verification reports them
        return
    line = _LINES[format]
    for row in rows:
        body = parse_body(row.body)
        if not isinstance(body.get("at"), int) or not isinstance(body.get("event"), str):
            raise UnreadableLog(
                f"entry {row.shard}:{row.seq} cannot be read", help="run gateway audit verify on the same log"
            )
        if selection.has(body):
            yield line(row, body, version)


def _get_part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = body.get(name)
    return part if isinstance(part, dict) else {}


def _json_line(row: ChainRow, body: Mapping[str, Any], version: str) -> bytes:
    return to_line(row)


_LINES: Final[Mapping[Format, Callable[[ChainRow, Mapping[str, Any], str], bytes]]] = {
    "jsonl": _json_line,
    "cef": cef_line,
    "ocsf": ocsf_line,
}
