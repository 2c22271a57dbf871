"""Settings of a process: addresses, folders, limits. Tools and catalogues are configuration, not settings."""

import re
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gateway.app.project import ProjectFolders

_LOOPBACK_NAMES: Final = frozenset({"localhost", "ip6-localhost"})
_LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ORIGIN: Final = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")

Words = Annotated[tuple[str, ...], NoDecode]
"""A list in one variable, separated by commas or blanks."""


class Settings(BaseSettings):
    """Every setting can be given as an environment variable with the prefix GATEWAY_."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="Address of the data plane: MCP and REST.")
    port: int = Field(8080, ge=0, le=65535, description="Port of the data plane; 0 takes any free port.")
    admin_host: str = Field("127.0.0.1", description="Address of the admin plane: health, status and metrics.")
    admin_port: int = Field(8081, ge=0, le=65535, description="Port of the admin plane; 0 takes any free port.")
    configs: Path = Field(Path("configs"), description="The folder of documents, or a project that holds one.")
    policies: Path | None = Field(None, description="The folder of policies; without it, the one beside configs.")
    environment: str | None = Field(
        None, description="Apply this environment's overlay; without it, none. If there are overlays, one must match."
    )
    metrics_open: bool | None = Field(
        None, description="Whether /metrics needs no credential; without it, if the admin plane is on loopback."
    )
    log_format: Literal["json", "text"] | None = Field(
        None, description="How log lines look; without it, text in a terminal and JSON everywhere else."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level to log.")
    workers: int = Field(1, ge=1, le=64, description="Processes that serve; one that dies is replaced.")
    public_url: str | None = Field(
        None, description="URL of the data plane for callers; required beyond loopback. Allowed in Host headers."
    )
    peer_url: str | None = Field(
        None,
        description="URL of this gateway for other gateways of the same PostgreSQL database: http://HOST:PORT, with a "
        "port that serves nothing else.",
    )
    peer_listen: str | None = Field(
        None, description="HOST:PORT to listen on for those gateways, if it differs from the peer URL."
    )
    peer_key_file: Path | None = Field(
        None, description="File with the secret that those gateways share, of at least 32 bytes."
    )
    allowed_hosts: Words = Field(
        (), description="Names that are allowed in a Host header, besides those of the public URL and of loopback."
    )
    admin_allowed_hosts: Words = Field((), description="Names besides loopback for the admin plane's Host header.")
    allowed_origins: Words = Field((), description="Origins of web pages that may call and read the responses.")
    max_requests: int = Field(1000, ge=1, description="Requests that a process handles at once.")
    max_queue: int = Field(1000, ge=0, description="Requests that may wait; further ones are refused.")
    max_wait: timedelta = Field(timedelta(seconds=10), description="Seconds that a request waits before it is refused.")
    max_body: int = Field(4 << 20, ge=1024, description="Bytes that the body of a request may have.")
    max_json_values: int = Field(
        50_000, ge=1000, description="Values that the JSON of a request, or of an upstream's response, may have."
    )
    max_refusals: int = Field(
        60,
        ge=0,
        description="Refused calls per caller, reason and minute that are recorded singly; further ones are counted.",
    )
    grace: timedelta = Field(timedelta(seconds=30), description="Seconds that calls may continue after a stop.")
    python_packages: Words = Field((), description="Packages from which documents may name Python objects.")
    bundle: str | None = Field(None, description="File or URL of a bundle to serve instead of a folder.")
    bundle_keys: Words = Field((), description="Files with public keys, one of which must have signed the bundle.")
    bundle_grace: timedelta = Field(
        timedelta(days=1), description="Seconds that calls which change nothing are allowed after the bundle expired."
    )
    require_signature: bool = Field(False, description="Whether a bundle is refused if no key is named.")
    state: Path | None = Field(
        None,
        description="Folder for the last good revision and the number of the last bundle; without it, that of the "
        "database, and with a bundle GATEWAY_DATA_DIR or data.",
    )
    last_good: bool = Field(False, description="Whether a start with invalid documents serves the last good revision.")
    watch: timedelta | None = Field(
        None, description="Seconds between two checks of the source for changes; without it, it is not checked."
    )

    @field_validator("environment")
    @classmethod
    def _empty_to_none(cls, value: str | None) -> str | None:
        """Treat an empty variable as no environment."""
        return value or None

    @field_validator("log_format", "log_level", mode="before")
    @classmethod
    def _lower_word(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator(
        *("allowed_hosts", "admin_allowed_hosts", "allowed_origins", "python_packages", "bundle_keys"), mode="before"
    )
    @classmethod
    def _split_words(cls, value: object) -> object:
        return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value

    @field_validator("allowed_hosts", "admin_allowed_hosts", "allowed_origins")
    @classmethod
    def _lower_case(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Lower host names; names of packages are case-sensitive."""
        return tuple(each.lower() for each in value)

    @field_validator("allowed_hosts", "admin_allowed_hosts")
    @classmethod
    def _bracket_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Add brackets to IPv6 addresses: a cluster passes the addresses of its pods without them."""
        return tuple(each if each.startswith("[") else _add_brackets(each) for each in value)

    @field_validator("allowed_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Raise for an origin that no browser sends, such as one with a path or `*`."""
        if wrong := next((each for each in value if not _ORIGIN.fullmatch(each)), None):
            raise ValueError(f"{wrong!r} is not an origin: write https://HOST or https://HOST:PORT")
        return value

    @field_validator("peer_url")
    @classmethod
    def _check_peer_url(cls, value: str | None) -> str | None:
        """Remove brackets around an IPv4 address: a chart adds them, since it does not know the version."""
        value = re.sub(r"\[([0-9.]+)\]", r"\1", value or "").rstrip("/")
        if value and (not value.startswith("http://") or _host_and_port(value.removeprefix("http://")) is None):
            raise ValueError("write http://HOST:PORT")
        return value or None

    @field_validator("peer_listen")
    @classmethod
    def _check_peer_listen(cls, value: str | None) -> str | None:
        if value and _host_and_port(value) is None:
            raise ValueError("write HOST:PORT")
        return value or None

    @field_validator("grace", "watch", "max_wait", "bundle_grace", mode="before")
    @classmethod
    def _parse_seconds(cls, value: object) -> object:
        """Parse text as seconds: a variable is text, which pydantic does not read as seconds."""
        found = re.fullmatch(r"(\d{1,6})s?", value) if isinstance(value, str) else None
        return timedelta(seconds=int(found[1])) if found else value

    @property
    def project(self) -> ProjectFolders:
        return ProjectFolders.from_folder(self.configs, policies=self.policies)

    @property
    def secrets_folder(self) -> Path:
        """The folder that secret files of documents are relative to; a bundle holds none."""
        return self.project.configs if self.bundle is None else Path()

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the data plane."""
        return is_loopback(self.host)

    @property
    def are_metrics_open(self) -> bool:
        return is_loopback(self.admin_host) if self.metrics_open is None else self.metrics_open

    @property
    def hosts(self) -> frozenset[str]:
        """Names that a Host header may have, without ports."""
        local = _LOOPBACK_HOSTS if self.is_local else frozenset()
        public = urlsplit(self.public_url).hostname if self.public_url else None
        return frozenset({*local, *self.allowed_hosts, *({_add_brackets(public)} if public else set())})

    @property
    def peer_place(self) -> tuple[str, int] | None:
        """Host and port to listen on for other gateways; `None` without a peer URL."""
        if self.peer_url is None:
            return None
        return _host_and_port(self.peer_listen or self.peer_url.removeprefix("http://"))

    @property
    def admin_hosts(self) -> frozenset[str]:
        """Names that are allowed in a Host header of the admin plane; loopback always is."""
        return _LOOPBACK_HOSTS.union(self.admin_allowed_hosts)


def get_variable_name(setting: str) -> str:
    return f"{Settings.model_config['env_prefix']}{setting.upper()}"


def format_default(setting: str) -> str:
    """Return the default of a setting as text; empty if there is none."""
    match Settings.model_fields[setting].default:
        case None | ():
            return ""
        case bool(is_so):
            return str(is_so).lower()
        case timedelta() as time:
            return f"{time.total_seconds():.0f}"
        case other:
            return str(other)


def describe_expected(setting: str) -> str:
    """Return the expected form of a setting, for an error message."""
    shape = Settings.model_json_schema()["properties"][setting]
    shape = next((each for each in shape.get("anyOf", ()) if each["type"] != "null"), shape)
    match shape:
        case {"enum": [*others, last]}:
            return f"{', '.join(others)} or {last}"
        case {"type": "integer", "minimum": least, "maximum": most}:
            return f"a whole number from {least} to {most}"
        case {"type": "integer", "minimum": least}:
            return f"a whole number that is at least {least}"
        case {"type": "boolean"}:
            return "true or false"
        case {"format": "duration"}:
            return "a number of seconds, such as 30"
    return "text"


def is_loopback(host: str) -> bool:
    if host in _LOOPBACK_NAMES:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _host_and_port(text: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(f"//{text}")
        is_whole = parts.netloc == text and "@" not in text and bool(parts.hostname)
        return (parts.hostname or "", parts.port) if is_whole and parts.port else None
    except ValueError:
        return None


def _add_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host.lower()
