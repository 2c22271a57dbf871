"""YAML scalars: durations, sizes, days, names, URLs; each with a message that explains what to write.

The loader, the editor schema and the field documentation use the same objects, so they agree.
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

from gateway.model import CONFIG_OBJECT, NAME_REGEX, OBJECT_KINDS, PATTERN_REGEX, SUBJECT_KINDS, SUBJECT_NAME_REGEX

ENV_REFERENCE: Final = r"\$\{"
"""Editors see `${NAME}` before substitution, so their schema accepts any text with a reference."""

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
    """Return the type of a value in words, never the value itself."""
    return _TYPE_NAMES.get(type(value), "something else")


def _is_small(value: object) -> bool:
    """Whether a value is a number small enough to convert to text."""
    return isinstance(value, int | float) and abs(value) < 10**18


@dataclass(frozen=True, slots=True)
class TextScalar:
    """A scalar written as text: its name, its pattern, and the message for an invalid value."""

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
            raise self._refusal(_non_ascii_hint(value) if self.code == "bad-name" else None)
        try:
            return self.convert(value)
        except (ValueError, OverflowError):
            is_date = self.code == "bad-date"
            raise self._refusal("this day or time does not exist" if is_date else None) from None

    def _refusal(self, help: str | None) -> PydanticCustomError:
        return PydanticCustomError(self.code, "{message}", {"message": self.wanted, "help": help})


def _non_ascii_hint(text: str) -> str | None:
    """Return a note on the first letter that is not ASCII, because it may look like one."""
    found = next((char for char in text if not char.isascii() and char.isalnum()), None)
    return (
        found
        and f"U+{ord(found):04X} is {unicodedata.name(found, 'something else').lower()}, which is not an ASCII letter"
    )


_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _split_number(text: str) -> tuple[int, str]:
    digits = len(text) - len(text.lstrip("0123456789"))
    return int(text[:digits]), text[digits:]


def _parse_duration(text: str) -> timedelta:
    number, unit = _split_number(text)
    return timedelta(milliseconds=number * _UNITS[unit])


def _parse_size(text: str) -> int:
    number, unit = _split_number(text)
    return number * _SIZES[unit]


def _check_url(text: str) -> str:
    parts = urlsplit(text)
    if not parts.hostname or parts.port == 0 or parts.username is not None:
        raise ValueError
    return text


def _closing_time(text: str) -> time:
    return time.max if text == "24:00" else time.fromisoformat(text)


def _zone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (KeyError, OSError):
        raise ValueError from None
    return text


def _parse_network(text: str) -> str:
    network = ip_network(text)
    inside: list[Any] = [each for each in _PRIVATE if each.version == network.version]
    if not any(network.subnet_of(each) for each in inside):
        raise ValueError
    return str(network)


def _check_path(text: str) -> str:
    if ".." in text.split("/"):
        raise ValueError
    return text


_PRIVATE: Final = tuple(
    map(
        ip_network,
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "fc00::/7", "::1/128"),
    )
)
"""Private networks. Link-local networks are excluded: their metadata services return machine credentials."""

_CALLERS: Final = "|".join(kind for kind in SUBJECT_KINDS if kind != "role")

Name = Annotated[
    str,
    TextScalar("a name", "write 1 to 128 letters, digits, '_', '-' or '.'", NAME_REGEX, code="bad-name"),
]
NamePattern = Annotated[
    str,
    TextScalar(
        "a name pattern",
        "write a name of letters, digits, '_', '-' or '.', in which '*' stands for any run of characters",
        PATTERN_REGEX,
        code="bad-name",
    ),
]
Prose = Annotated[str, TextScalar("text", "write some text", r"[\s\S]*\S[\s\S]*")]
SingleLineText = Annotated[
    str, TextScalar("text on one line", "write one line of at most 300 characters", r"[^\r\n]{1,300}")
]
Duration = Annotated[
    timedelta,
    TextScalar(
        "a duration",
        "write a number and a unit: 10s, 5m, 2h, 1d",
        r"[1-9][0-9]{0,8}(?:ms|s|m|h|d)",
        code="bad-duration",
        convert=_parse_duration,
    ),
]
ArgumentPath = Annotated[
    tuple[str, ...],
    TextScalar(
        "an argument",
        "write args. and the name of an argument: args.amount",
        r"args(?:\.[A-Za-z_][A-Za-z0-9_]{0,63}){1,8}",
        convert=lambda text: tuple(text.split(".")[1:]),
    ),
]
IdleTime = Annotated[
    timedelta | None,
    TextScalar(
        "a duration, or off",
        "write a number and a unit, 30m or 2h, or off",
        r"off|[1-9][0-9]{0,8}(?:ms|s|m|h|d)",
        code="bad-duration",
        convert=lambda text: None if text == "off" else _parse_duration(text),
    ),
]
Size = Annotated[
    int,
    TextScalar(
        "a size",
        "write a number and a unit: 256KiB, 1MiB, 10MB",
        r"[1-9][0-9]{0,8}(?:B|KB|MB|GB|KiB|MiB|GiB)",
        code="bad-size",
        convert=_parse_size,
    ),
]
Day = Annotated[
    date,
    TextScalar(
        "a day",
        'write a day as "2026-11-16"',
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
        code="bad-date",
        convert=date.fromisoformat,
    ),
]
Timestamp = Annotated[
    datetime,
    TextScalar(
        "a date and time",
        'write a date and time with its time zone: "2026-11-16T10:00:00Z"',
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})",
        code="bad-date",
        convert=datetime.fromisoformat,
    ),
]
TimeOfDay = Annotated[
    time,
    TextScalar(
        "a time of day",
        'write a time of day as "08:00"',
        r"(?:[01][0-9]|2[0-3]):[0-5][0-9]",
        code="bad-time",
        convert=time.fromisoformat,
    ),
]
ClosingTimeOfDay = Annotated[
    time,
    TextScalar(
        "a time of day",
        'write a time of day as "18:00", or "24:00" for the end of the day',
        r"(?:[01][0-9]|2[0-3]):[0-5][0-9]|24:00",
        code="bad-time",
        convert=_closing_time,
    ),
]
TimeZone = Annotated[
    str,
    TextScalar("a time zone", "write a time zone by its name: Europe/Berlin", r"[A-Za-z0-9_+/-]{1,64}", convert=_zone),
]
VersionText = Annotated[
    str,
    TextScalar(
        "a version",
        'write a version of three numbers: "1.4.2"',
        r"(?:0|[1-9][0-9]{0,8})(?:\.(?:0|[1-9][0-9]{0,8})){2}(?:-[0-9A-Za-z.-]{1,64})?(?:\+[0-9A-Za-z.-]{1,64})?",
        code="bad-version",
    ),
]
UrlText = Annotated[
    str,
    TextScalar(
        "a URL",
        "write a full http or https URL with a host, without a user name or password",
        r"https?://[^\s/?#@{}\\]+(?:[/?][^\s#{}\\]*)?",
        code="bad-url",
        convert=_check_url,
    ),
]
UrlTemplateText = Annotated[
    str,
    TextScalar(
        "a URL",
        "write a full http or https URL with a fixed host; {placeholders} are allowed only in its path",
        r"https?://[^\s/?#@{}\\]+(?:/[^\s?#\\]*)?(?:\?[^\s#{}\\]*)?",
        code="bad-url",
        convert=_check_url,
    ),
]
PrivateNetwork = Annotated[
    str,
    TextScalar(
        "a network",
        "write a private network with its first address and prefix length: 10.20.0.0/16, 192.168.1.0/24, fd00:20::/32",
        r"[0-9A-Fa-f.:]{2,39}(?:/[0-9]{1,3})?",
        code="bad-network",
        convert=_parse_network,
    ),
]
AbsolutePath = Annotated[
    str,
    TextScalar(
        "an absolute path",
        "write a path from the root, without '..': /srv/repos",
        r"/[^\x00\r\n]*",
        code="bad-path",
        convert=_check_path,
    ),
]
ObjectPrefix = Annotated[
    str,
    TextScalar(
        "a prefix of object names",
        "write names separated by '/', without '/' at the start or end: gateway/results",
        r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}(?:/[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}){0,7}",
        code="bad-path",
    ),
]
FilePath = Annotated[str, TextScalar("a path", "write the path of a file", r"[^\x00\r\n]+", code="bad-path")]
EntryPoint = Annotated[
    str,
    TextScalar(
        "an entry point",
        "write a module and a name in it: acme_tools.pricing:quote",
        r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*",
        code="bad-entrypoint",
    ),
]
EnvName = Annotated[
    str,
    TextScalar("the name of an environment variable", "write letters, digits and '_'", r"[A-Za-z_][A-Za-z0-9_]{0,127}"),
]
HeaderName = Annotated[
    str,
    TextScalar("a header name", "write letters, digits and '-'", r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}"),
]
HeaderValue = Annotated[str, TextScalar("a header value", "write one line of printable ASCII", r"[\x20-\x7e]{0,4096}")]
JsonPathText = Annotated[
    str,
    TextScalar("a JSON path", "write a path from the root: $.ticket.number", r"\$[^\r\n]*", code="bad-path"),
]
CelExpression = Annotated[
    str, TextScalar("a CEL expression", "write an expression: args.amount > 500", r"[\s\S]*\S[\s\S]*")
]
Role = Annotated[
    str,
    TextScalar("a role", "write a role with its prefix: role:engineer", rf"role:{SUBJECT_NAME_REGEX}", code="bad-name"),
]
Subject = Annotated[
    str,
    TextScalar(
        "a subject",
        "write a subject with its prefix: user:ana, agent:release-bot, service:billing",
        rf"(?:{_CALLERS}):{SUBJECT_NAME_REGEX}",
        code="bad-name",
    ),
]
PrincipalName = Annotated[
    str,
    TextScalar(
        "a role or a subject",
        "write it with its prefix: role:engineer, user:ana, agent:release-bot, service:billing",
        rf"(?:{'|'.join(SUBJECT_KINDS)}):{SUBJECT_NAME_REGEX}",
        code="bad-name",
    ),
]
PolicyObject = Annotated[
    str,
    TextScalar(
        "an object of the policy",
        f"write {', '.join(f'{kind}:NAME' for kind in OBJECT_KINDS)} or {CONFIG_OBJECT}",
        rf"(?:{'|'.join(OBJECT_KINDS)}):{PATTERN_REGEX}|{CONFIG_OBJECT}",
        code="bad-name",
    ),
]
