"""Scalars of the YAML: durations, sizes, days, names, URLs; each with a message that says what to write.

The same object feeds the loader, the editor schema and the field documentation, so the three cannot differ.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from ipaddress import ip_network
from typing import Annotated, Any, Final
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from gateway.governance.names import CONFIG, NAME, OBJECT_KINDS, PATTERN, SUBJECT_KINDS, SUBJECT_NAME

ENV_REFERENCE: Final = r"\$\{"
"""Editors see `${NAME}` before it is resolved, so a text with a reference passes their check."""

_TYPE_NAMES: Final = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    dict: "a mapping",
    list: "a list",
    type(None): "nothing",
}


def type_name(value: object) -> str:
    """A value's type in words; never the value."""
    return _TYPE_NAMES.get(type(value), "something else")


def _is_small(value: object) -> bool:
    """Whether a value is a number that can be written out without a thought."""
    return isinstance(value, int | float) and abs(value) < 10**18


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar written as text: what it is called, how it looks, what to say when it does not."""

    name: str
    wanted: str
    pattern: str
    code: str = "wrong-value"
    convert: Callable[[str], Any] = str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)

    def read(self, value: object) -> Any:
        if not isinstance(value, str):
            quoted = " in quotes" if _is_small(value) and re.fullmatch(self.pattern, str(value)) else ""
            message = f"expected {self.name}, got {type_name(value)}"
            raise PydanticCustomError("wrong-type", "{message}", {"message": message, "help": self.wanted + quoted})
        if not re.fullmatch(self.pattern, value):
            raise self._refusal(_foreign_letter(value) if self.code == "bad-name" else None)
        try:
            return self.convert(value)
        except (ValueError, OverflowError):
            is_date = self.code == "bad-date"
            raise self._refusal("there is no such day or time" if is_date else None) from None

    def _refusal(self, help: str | None) -> PydanticCustomError:
        return PydanticCustomError(self.code, "{message}", {"message": self.wanted, "help": help})


def _foreign_letter(text: str) -> str | None:
    """Which character is none of the alphabet, where it looks as if it were."""
    found = next((char for char in text if not char.isascii() and char.isalnum()), None)
    return (
        found
        and f"U+{ord(found):04X} is {unicodedata.name(found, 'something else').lower()}, which is not in the alphabet"
    )


_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _split_number(text: str) -> tuple[int, str]:
    digits = len(text) - len(text.lstrip("0123456789"))
    return int(text[:digits]), text[digits:]


def _duration(text: str) -> timedelta:
    number, unit = _split_number(text)
    return timedelta(milliseconds=number * _UNITS[unit])


def _size(text: str) -> int:
    number, unit = _split_number(text)
    return number * _SIZES[unit]


def _url(text: str) -> str:
    parts = urlsplit(text)
    if not parts.hostname or parts.port == 0 or parts.username is not None:
        raise ValueError
    return text


def _closing(text: str) -> time:
    return time.max if text == "24:00" else time.fromisoformat(text)


def _zone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (KeyError, OSError):
        raise ValueError from None
    return text


def _network(text: str) -> str:
    network = ip_network(text)
    inside: list[Any] = [each for each in _PRIVATE if each.version == network.version]
    if not any(network.subnet_of(each) for each in inside):
        raise ValueError
    return str(network)


def _path(text: str) -> str:
    if ".." in text.split("/"):
        raise ValueError
    return text


_PRIVATE: Final = tuple(
    map(
        ip_network,
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "fc00::/7", "::1/128"),
    )
)
"""Networks of one's own. Link-local ones are none: what answers there hands out the credentials of the machine."""

_CALLERS: Final = "|".join(kind for kind in SUBJECT_KINDS if kind != "role")

Name = Annotated[
    str,
    Text("a name", "write 1 to 128 letters, digits, '_', '-' or '.'", NAME, code="bad-name"),
]
Pattern = Annotated[
    str,
    Text(
        "a name pattern",
        "write a name of letters, digits, '_', '-' or '.', in which '*' stands for any run of characters",
        PATTERN,
        code="bad-name",
    ),
]
Prose = Annotated[str, Text("text", "write some text", r"[\s\S]*\S[\s\S]*")]
Line = Annotated[str, Text("text on one line", "write one line of at most 300 characters", r"[^\r\n]{1,300}")]
Duration = Annotated[
    timedelta,
    Text(
        "a duration",
        "write a number and a unit: 10s, 5m, 2h, 1d",
        r"[1-9][0-9]{0,8}(?:ms|s|m|h|d)",
        code="bad-duration",
        convert=_duration,
    ),
]
ArgumentPath = Annotated[
    tuple[str, ...],
    Text(
        "an argument",
        "write args. and the name of an argument: args.amount",
        r"args(?:\.[A-Za-z_][A-Za-z0-9_]{0,63}){1,8}",
        convert=lambda text: tuple(text.split(".")[1:]),
    ),
]
IdleTime = Annotated[
    timedelta | None,
    Text(
        "a duration, or off",
        "write a number and a unit, 30m or 2h, or off",
        r"off|[1-9][0-9]{0,8}(?:ms|s|m|h|d)",
        code="bad-duration",
        convert=lambda text: None if text == "off" else _duration(text),
    ),
]
Size = Annotated[
    int,
    Text(
        "a size",
        "write a number and a unit: 256KiB, 1MiB, 10MB",
        r"[1-9][0-9]{0,8}(?:B|KB|MB|GB|KiB|MiB|GiB)",
        code="bad-size",
        convert=_size,
    ),
]
Day = Annotated[
    date,
    Text(
        "a day",
        'write a day as "2026-11-16"',
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
        code="bad-date",
        convert=date.fromisoformat,
    ),
]
Moment = Annotated[
    datetime,
    Text(
        "a moment",
        'write a moment with its time zone: "2026-11-16T10:00:00Z"',
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})",
        code="bad-date",
        convert=datetime.fromisoformat,
    ),
]
Clock = Annotated[
    time,
    Text(
        "a time of day",
        'write a time of day as "08:00"',
        r"(?:[01][0-9]|2[0-3]):[0-5][0-9]",
        code="bad-time",
        convert=time.fromisoformat,
    ),
]
ClosingClock = Annotated[
    time,
    Text(
        "a time of day",
        'write a time of day as "18:00", or "24:00" for the end of the day',
        r"(?:[01][0-9]|2[0-3]):[0-5][0-9]|24:00",
        code="bad-time",
        convert=_closing,
    ),
]
TimeZone = Annotated[
    str,
    Text("a time zone", "write a time zone by its name: Europe/Berlin", r"[A-Za-z0-9_+/-]{1,64}", convert=_zone),
]
Version = Annotated[
    str,
    Text(
        "a version",
        'write a version of three numbers: "1.4.2"',
        r"(?:0|[1-9][0-9]{0,8})(?:\.(?:0|[1-9][0-9]{0,8})){2}(?:-[0-9A-Za-z.-]{1,64})?(?:\+[0-9A-Za-z.-]{1,64})?",
        code="bad-version",
    ),
]
Url = Annotated[
    str,
    Text(
        "a URL",
        "write a full http or https URL with a host, without a user name or password",
        r"https?://[^\s/?#@{}\\]+(?:[/?][^\s#{}\\]*)?",
        code="bad-url",
        convert=_url,
    ),
]
UrlTemplate = Annotated[
    str,
    Text(
        "a URL",
        "write a full http or https URL with a fixed host; {placeholders} may stand in its path only",
        r"https?://[^\s/?#@{}\\]+(?:/[^\s?#\\]*)?(?:\?[^\s#{}\\]*)?",
        code="bad-url",
        convert=_url,
    ),
]
PrivateNetwork = Annotated[
    str,
    Text(
        "a network",
        "write a network of your own by its first address and length: 10.20.0.0/16, 192.168.1.0/24, fd00:20::/32",
        r"[0-9A-Fa-f.:]{2,39}(?:/[0-9]{1,3})?",
        code="bad-network",
        convert=_network,
    ),
]
AbsolutePath = Annotated[
    str,
    Text(
        "an absolute path",
        "write a path from the root, without '..': /srv/repos",
        r"/[^\x00\r\n]*",
        code="bad-path",
        convert=_path,
    ),
]
ObjectPrefix = Annotated[
    str,
    Text(
        "a prefix of object names",
        "write names with '/' between them, and none at its ends: gateway/results",
        r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}(?:/[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}){0,7}",
        code="bad-path",
    ),
]
FilePath = Annotated[str, Text("a path", "write the path of a file", r"[^\x00\r\n]+", code="bad-path")]
EntryPoint = Annotated[
    str,
    Text(
        "an entry point",
        "write a module and a name in it: acme_tools.pricing:quote",
        r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*",
        code="bad-entrypoint",
    ),
]
EnvName = Annotated[
    str,
    Text("the name of an environment variable", "write letters, digits and '_'", r"[A-Za-z_][A-Za-z0-9_]{0,127}"),
]
HeaderName = Annotated[
    str,
    Text("a header name", "write letters, digits and '-'", r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}"),
]
HeaderValue = Annotated[str, Text("a header value", "write one line of printable ASCII", r"[\x20-\x7e]{0,4096}")]
JsonPath = Annotated[
    str,
    Text("a JSON path", "write a path from the root: $.ticket.number", r"\$[^\r\n]*", code="bad-path"),
]
Expression = Annotated[str, Text("a CEL expression", "write an expression: args.amount > 500", r"[\s\S]*\S[\s\S]*")]
Role = Annotated[
    str,
    Text("a role", "write a role with its prefix: role:engineer", rf"role:{SUBJECT_NAME}", code="bad-name"),
]
Subject = Annotated[
    str,
    Text(
        "a subject",
        "write a subject with its prefix: user:ana, agent:release-bot, service:billing",
        rf"(?:{_CALLERS}):{SUBJECT_NAME}",
        code="bad-name",
    ),
]
Principal = Annotated[
    str,
    Text(
        "a role or a subject",
        "write it with its prefix: role:engineer, user:ana, agent:release-bot, service:billing",
        rf"(?:{'|'.join(SUBJECT_KINDS)}):{SUBJECT_NAME}",
        code="bad-name",
    ),
]
PolicyObject = Annotated[
    str,
    Text(
        "an object of the policy",
        f"write {', '.join(f'{kind}:NAME' for kind in OBJECT_KINDS)} or {CONFIG}",
        rf"(?:{'|'.join(OBJECT_KINDS)}):{PATTERN}|{CONFIG}",
        code="bad-name",
    ),
]
