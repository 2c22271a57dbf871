"""Entries as CEF (ArcSight Common Event Format, version 0). No value, whoever chose it, can end a field or a line."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.audit.chain import Row
from gateway.audit.fields import Fields

PRODUCT: Final = "agent-gateway"

_SEVERITY: Final = {1: 2, 2: 4, 3: 6, 4: 8, 5: 10}


def cef_line(row: Row, body: Mapping[str, Any], version: str) -> bytes:
    fields = Fields(body)
    header = (PRODUCT, PRODUCT, version, fields.event, fields.event.replace("-", " "), str(_SEVERITY[fields.severity]))
    extension = " ".join(f"{key}={_value(value)}" for key, value in _extension(row, fields) if value)
    line = "|".join(("CEF:0", *map(_header, header), extension))
    return line.encode("utf-8", "replace") + b"\n"


def _extension(row: Row, fields: Fields) -> Iterator[tuple[str, str]]:
    yield "rt", str((fields.number("at") or 0) // 1000)
    yield "externalId", f"{row.shard}:{row.seq}"
    yield "dvchost", fields.text("place.node")
    yield "act", fields.text("decision.effect")
    yield "outcome", fields.text("outcome.state")
    yield "reason", fields.text("decision.reason") or fields.text("outcome.errorType")
    yield "suser", fields.text("caller.subject")
    yield "spriv", ",".join(fields.texts("caller.roles"))
    yield "shost", fields.text("caller.client.address")
    yield "requestClientApplication", fields.text("caller.client.name")
    yield "gatewayAuthMethod", fields.text("caller.authMethod")
    yield "cnt", str(fields.number("counted.number") or "")
    yield "duser", fields.last_approver
    yield "msg", fields.text("object.note") or fields.text("decision.position")
    custom = [(f"cs{number}", *each) for number, each in enumerate(_custom(row, fields), start=1)]
    custom += [("flexString1", "issuer", fields.text("caller.issuer"))]
    custom += [("flexString2", "token", fields.text("caller.token"))]
    for key, label, value in custom:
        if value:
            yield f"{key}Label", label
            yield key, value


def _custom(row: Row, fields: Fields) -> Iterator[tuple[str, str]]:
    """The six texts that CEF leaves to us, always at the same number."""
    yield "tool", fields.text("target.tool") or fields.text("object.name")
    yield "catalogue", fields.text("target.catalogue")
    yield "tenant", fields.text("caller.tenant")
    yield "call", fields.text("call.id")
    yield "rules", ",".join(fields.texts("decision.rules"))
    yield "hash", row.hash.hex()


def _header(text: str) -> str:
    return _shown(text).replace("\\", "\\\\").replace("|", "\\|")


def _value(text: str) -> str:
    lines = text.replace("\\", "\\\\").replace("=", "\\=").replace("\r", "\\r").replace("\n", "\\n")
    return _shown(lines)


def _shown(text: str) -> str:
    """What would break a line, hide or turn text around, as its code point in angle brackets."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"<U+{ord(c):04X}>" for c in text)
