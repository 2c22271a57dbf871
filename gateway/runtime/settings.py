"""How this process runs: addresses, folders, limits. What the gateway offers is configuration, not settings."""

import re
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gateway.assembly import Project

_LOOPBACK_NAMES: Final = frozenset({"localhost", "ip6-localhost"})
_LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ORIGIN: Final = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")

Words = Annotated[tuple[str, ...], NoDecode]
"""A list in one variable, separated by commas or blanks."""


class Settings(BaseSettings):
    """Every setting can be given as an environment variable with the prefix GATEWAY_."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="Address of the data plane: MCP and REST.")
    port: int = Field(8080, ge=0, le=65535, description="Port of the data plane; 0 takes any that is free.")
    admin_host: str = Field("127.0.0.1", description="Address of the admin plane: health, status and metrics.")
    admin_port: int = Field(8081, ge=0, le=65535, description="Port of the admin plane; 0 takes any that is free.")
    configs: Path = Field(Path("configs"), description="The folder of documents, or a project that holds one.")
    policies: Path | None = Field(None, description="The folder of policies; without it, the one beside configs.")
    environment: str | None = Field(
        None, description="Whose overlay to apply; without it, none. Where there are overlays, one must be for it."
    )
    metrics_open: bool | None = Field(
        None, description="Whether /metrics needs no credential; without it, if the admin plane is on loopback."
    )
    log_format: Literal["json", "text"] | None = Field(
        None, description="How log lines look; without it, text in a terminal and JSON everywhere else."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="What is logged at least.")
    workers: int = Field(1, ge=1, le=64, description="Processes that serve; one that dies is replaced.")
    public_url: str | None = Field(
        None, description="How callers reach the data plane; needed beyond loopback. A Host header may have its name."
    )
    peer_url: str | None = Field(
        None,
        description="How other gateways of the same PostgreSQL database reach this one: http://HOST:PORT, with a port "
        "for that alone, where it listens for them.",
    )
    peer_listen: str | None = Field(
        None, description="HOST:PORT where it listens for them, if that is not the host and port of the peer URL."
    )
    peer_key_file: Path | None = Field(
        None, description="File with the secret that those gateways have in common, of at least 32 bytes."
    )
    allowed_hosts: Words = Field(
        (), description="More names that a Host header may have, besides the public URL's and loopback's."
    )
    admin_allowed_hosts: Words = Field((), description="Names besides loopback's for the admin plane's Host header.")
    allowed_origins: Words = Field((), description="Origins of web pages that may call, and read what they get.")
    max_requests: int = Field(1000, ge=1, description="Requests that a process works on at once.")
    max_queue: int = Field(1000, ge=0, description="Requests that wait for that; whatever comes then is refused.")
    max_wait: timedelta = Field(timedelta(seconds=10), description="Seconds that a request waits before it is refused.")
    max_body: int = Field(4 << 20, ge=1024, description="Bytes that the body of a request may have.")
    max_json_values: int = Field(
        50_000, ge=1000, description="Values that the JSON of a request, or of an upstream's answer, may have."
    )
    max_refusals: int = Field(
        60,
        ge=0,
        description="Refused calls of one caller for one reason that are recorded one by one in a minute; others are "
        "counted.",
    )
    grace: timedelta = Field(timedelta(seconds=30), description="Seconds that calls may go on after a stop.")
    python_packages: Words = Field((), description="Packages that documents may name Python objects in.")
    bundle: str | None = Field(None, description="A bundle, in a file or at an address, instead of a folder.")
    bundle_keys: Words = Field((), description="Files with public keys, one of which must have signed the bundle.")
    bundle_grace: timedelta = Field(
        timedelta(days=1), description="Seconds that calls which change nothing go on after the bundle's end."
    )
    require_signature: bool = Field(False, description="Whether a bundle is refused while no key is named.")
    state: Path | None = Field(
        None,
        description="Folder for the last good revision and the number of the last bundle; without it, that of the "
        "database, and with a bundle GATEWAY_DATA_DIR or data.",
    )
    last_good: bool = Field(False, description="Whether a start with a broken configuration serves the last good one.")
    watch: timedelta | None = Field(
        None, description="Seconds between two looks at the folder, to serve what changed; without it, nobody looks."
    )

    @field_validator("environment")
    @classmethod
    def _named(cls, value: str | None) -> str | None:
        """An empty variable names no environment."""
        return value or None

    @field_validator("log_format", "log_level", mode="before")
    @classmethod
    def _word(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator(
        *("allowed_hosts", "admin_allowed_hosts", "allowed_origins", "python_packages", "bundle_keys"), mode="before"
    )
    @classmethod
    def _words(cls, value: object) -> object:
        return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value

    @field_validator("allowed_hosts", "admin_allowed_hosts", "allowed_origins")
    @classmethod
    def _lower_case(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Names of machines have no case; those of packages do."""
        return tuple(each.lower() for each in value)

    @field_validator("allowed_hosts", "admin_allowed_hosts")
    @classmethod
    def _as_in_headers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Whoever hands an address of version 6 on, as a cluster does for its pods, has it without brackets."""
        return tuple(each if each.startswith("[") else _bracketed(each) for each in value)

    @field_validator("allowed_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """As browsers send them: one with a path, or for everybody, would never match."""
        if wrong := next((each for each in value if not _ORIGIN.fullmatch(each)), None):
            raise ValueError(f"{wrong!r} is no origin: write https://HOST or https://HOST:PORT")
        return value

    @field_validator("peer_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        """Whoever does not know of which version an address is, as a chart, puts it into brackets."""
        value = re.sub(r"\[([0-9.]+)\]", r"\1", value or "").rstrip("/")
        if value and (not value.startswith("http://") or _host_and_port(value.removeprefix("http://")) is None):
            raise ValueError("write http://HOST:PORT")
        return value or None

    @field_validator("peer_listen")
    @classmethod
    def _place(cls, value: str | None) -> str | None:
        if value and _host_and_port(value) is None:
            raise ValueError("write HOST:PORT")
        return value or None

    @field_validator("grace", "watch", "max_wait", "bundle_grace", mode="before")
    @classmethod
    def _seconds(cls, value: object) -> object:
        """A variable is always text, in which the library would see no number of seconds."""
        found = re.fullmatch(r"(\d{1,6})s?", value) if isinstance(value, str) else None
        return timedelta(seconds=int(found[1])) if found else value

    @property
    def project(self) -> Project:
        return Project.at(self.configs, policies=self.policies)

    @property
    def secrets_folder(self) -> Path:
        """What secret files of documents are relative to; they are in no bundle."""
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
        return frozenset({*local, *self.allowed_hosts, *({_bracketed(public)} if public else set())})

    @property
    def peer_place(self) -> tuple[str, int] | None:
        """Where it listens for other gateways; `None` if they do not know it."""
        if self.peer_url is None:
            return None
        return _host_and_port(self.peer_listen or self.peer_url.removeprefix("http://"))

    @property
    def admin_hosts(self) -> frozenset[str]:
        """The same for the admin plane, which always answers to its own machine."""
        return _LOOPBACK_HOSTS.union(self.admin_allowed_hosts)


def variable_of(setting: str) -> str:
    return f"{Settings.model_config['env_prefix']}{setting.upper()}"


def default_of(setting: str) -> str:
    """What counts where nobody says it, as it would be written; empty where that is nothing."""
    match Settings.model_fields[setting].default:
        case None | ():
            return ""
        case bool(is_so):
            return str(is_so).lower()
        case timedelta() as time:
            return f"{time.total_seconds():.0f}"
        case other:
            return str(other)


def expected_of(setting: str) -> str:
    """What a setting has to look like, for whoever wrote something else."""
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


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host.lower()
