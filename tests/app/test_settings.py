"""Settings from environment variables, and how they are reported."""

import os
import re
import subprocess
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.app.settings import Settings
from tests.support.gateways.commands import run_gateway
from tests.support.paths import ROOT


def test_lists_are_separated_by_commas_or_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_PYTHON_PACKAGES", "acme_tools,MyTools  other")
    monkeypatch.setenv("GATEWAY_ALLOWED_HOSTS", "Gateway.Example.com")
    monkeypatch.setenv("GATEWAY_ALLOWED_ORIGINS", "HTTPS://App.example.com, https://b.example.com")

    settings = Settings.model_validate({})

    assert settings.python_packages == ("acme_tools", "MyTools", "other")
    assert settings.allowed_hosts == ("gateway.example.com",)
    assert settings.allowed_origins == ("https://app.example.com", "https://b.example.com")


@pytest.mark.parametrize(
    "origin", ["*", "null", "app.example.com", "https://app.example.com/", "https://", "https://a.b:x", "ws://a.b"]
)
def test_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match=r"is not an origin: write https://HOST"):
        Settings.model_validate({"allowed_origins": f"https://b.example.com {origin}"})


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://[::1]:3000", "https://app.example.com"])
def test_origin_as_browsers_send_it_is_taken(origin: str) -> None:
    assert Settings.model_validate({"allowed_origins": origin}).allowed_origins == (origin,)


def test_hosts_are_those_of_loopback_and_of_the_public_url() -> None:
    settings = Settings.model_validate({"public_url": "https://Gateway.example.com:8443/x"})

    assert settings.hosts == {"localhost", "127.0.0.1", "[::1]", "gateway.example.com"}


def test_admin_plane_answers_to_its_own_machine_and_to_names_that_are_given() -> None:
    settings = Settings.model_validate({"admin_allowed_hosts": "10.1.2.3,FD00::7 [fd00::8] gateway-admin"})

    assert Settings.model_validate({}).admin_hosts == {"localhost", "127.0.0.1", "[::1]"}
    assert settings.admin_hosts - Settings.model_validate({}).admin_hosts == {
        "10.1.2.3",
        "[fd00::7]",
        "[fd00::8]",
        "gateway-admin",
    }
    assert settings.hosts == {"localhost", "127.0.0.1", "[::1]"}


@pytest.mark.parametrize(
    ("text", "seconds"), [("45", 45), ("45s", 45), ("0", 0), ("PT2M", 120), ("00:01:30", 90)], ids=repr
)
def test_grace_is_a_number_of_seconds_or_a_duration(monkeypatch: pytest.MonkeyPatch, text: str, seconds: int) -> None:
    monkeypatch.setenv("GATEWAY_GRACE", text)

    assert Settings.model_validate({}).grace == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["soon", "", "-5s", "12345678901234567890"], ids=repr)
def test_grace_that_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("GATEWAY_GRACE", text)

    with pytest.raises(ValueError, match="grace"):
        Settings.model_validate({})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("http://10.0.0.7:8080", "http://10.0.0.7:8080"),
        ("http://[10.0.0.7]:8080/", "http://10.0.0.7:8080"),
        ("http://[fd00::7]:8080", "http://[fd00::7]:8080"),
        ("", None),
    ],
)
def test_address_for_other_gateways_is_taken_as_it_is_meant(given: str, meant: str | None) -> None:
    assert Settings.model_validate({"peer_url": given}).peer_url == meant


@pytest.mark.parametrize(
    "given",
    [
        *("10.0.0.7:8080", "ftp://a", "http://", "http://a/path", "https://a:1", "http://a", "http://a:1/p"),
        *("http://u@a:1", "http://a:1?q", "http://a:x", "http://a:0", "http://[a:1"),
    ],
)
def test_address_for_other_gateways_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        Settings.model_validate({"peer_url": given})


@pytest.mark.parametrize(
    ("url", "listen", "place"),
    [
        (None, None, None),
        (None, "0.0.0.0:1", None),
        ("http://10.0.0.7:8079", None, ("10.0.0.7", 8079)),
        ("http://[fd00::7]:8079", None, ("fd00::7", 8079)),
        ("http://outside:80", "0.0.0.0:8079", ("0.0.0.0", 8079)),
        ("http://outside:80", "[::]:8079", ("::", 8079)),
    ],
)
def test_others_are_listened_for_at_the_address_they_know(
    url: str | None, listen: str | None, place: tuple[str, int] | None
) -> None:
    assert Settings.model_validate({"peer_url": url, "peer_listen": listen}).peer_place == place


@pytest.mark.parametrize("given", ["8079", "a", ":8079", "a:0", "http://a:1", "a:1/x", "u@a:1", "[a:1"])
def test_place_to_listen_for_others_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="write HOST:PORT"):
        Settings.model_validate({"peer_listen": given})


@dataclass(frozen=True)
class Row:
    """A row of the table in docs/settings.md."""

    variable: str
    option: str
    default: str
    words: str

    @property
    def setting(self) -> str:
        return self.variable.removeprefix("GATEWAY_").lower()


def documented() -> list[Row]:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    table = text.partition("| variable |")[2].partition("\n\n")[0]
    return [Row(*(cell.strip(" `") for cell in line.split("|")[1:-1])) for line in table.splitlines()[2:]]


def serve(*args: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    known = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    return run_gateway("serve", *args, env={**known, "COLUMNS": "200", **environ})


def test_every_setting_is_documented_and_nothing_else() -> None:
    known = {f"GATEWAY_{name.upper()}": field.description for name, field in Settings.model_fields.items()}

    assert {row.variable: row.words for row in documented()} == known
    assert len(documented()) == len(known)


@pytest.mark.parametrize("row", documented(), ids=lambda row: row.setting)
def test_documented_default_is_the_true_one(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("GATEWAY_")]:
        monkeypatch.delenv(name)
    defaults = Settings.model_validate({})
    monkeypatch.setenv(row.variable, row.default)

    if row.default:
        assert Settings.model_validate({}) == defaults
    else:
        assert getattr(defaults, row.setting) in (None, ())


def test_help_has_the_documented_options_and_their_defaults() -> None:
    help_text = serve("--help").stdout
    options = {row.option: row.default for row in documented() if row.option}
    sections = re.split(r"(?=\s--[a-z])", help_text.partition("Options")[2])
    shown = {section.split()[0]: section for section in sections if section.strip().startswith("--")}

    assert set(shown) == {*options, "--help"}
    found = {option: re.search(r"\[default: \((.*?)\)\]", shown[option]) for option in options}
    assert {option: match[1] if match else "" for option, match in found.items()} == options


@pytest.mark.parametrize(
    ("args", "environ", "help_text"),
    [
        ([], {"GATEWAY_PORT": "abc"}, "GATEWAY_PORT: write a whole number from 0 to 65535"),
        (["--port", "abc"], {}, "--port: write a whole number from 0 to 65535"),
        (["--admin-port", "70000"], {}, "--admin-port: write a whole number from 0 to 65535"),
        (["--workers", "0"], {"GATEWAY_WORKERS": "2"}, "--workers: write a whole number from 1 to 64"),
        (["--watch", "often"], {}, "--watch: write a number of seconds, such as 30"),
        ([], {"GATEWAY_GRACE": "soon"}, "GATEWAY_GRACE: write a number of seconds, such as 30"),
        ([], {"GATEWAY_MAX_BODY": "1"}, "GATEWAY_MAX_BODY: write a whole number that is at least 1024"),
        ([], {"GATEWAY_METRICS_OPEN": "maybe"}, "GATEWAY_METRICS_OPEN: write true or false"),
        ([], {"GATEWAY_LOG_LEVEL": "loud"}, "GATEWAY_LOG_LEVEL: write debug, info, warning or error"),
        ([], {"GATEWAY_LOG_FORMAT": "xml"}, "GATEWAY_LOG_FORMAT: write json or text"),
        ([], {"GATEWAY_PEER_URL": "10.0.0.7"}, "GATEWAY_PEER_URL: write http://HOST:PORT"),
    ],
)
def test_wrong_setting_is_reported_by_the_name_it_was_given_under(
    args: list[str], environ: dict[str, str], help_text: str
) -> None:
    answer = serve(*args, **environ)

    assert (answer.returncode, answer.stdout, answer.stderr) == (2, "", f"error: {help_text}\n")


def test_every_wrong_setting_is_reported() -> None:
    answer = serve("--workers", "x", GATEWAY_PORT="y")

    assert answer.stderr == (
        "error: GATEWAY_PORT: write a whole number from 0 to 65535; --workers: write a whole number from 1 to 64\n"
    )


@pytest.mark.parametrize(
    ("key", "help_text"),
    [
        (None, "GATEWAY_PEER_KEY_FILE"),
        (b"", "fewer than 32 bytes"),
        (b"x" * 31 + b"\n", "openssl rand -hex 32"),
        (b"x" * 5000, "too many"),
    ],
    ids=["none", "empty", "short", "long"],
)
def test_start_without_the_secret_of_the_gateways_is_refused(key: bytes | None, help_text: str, tmp_path: Path) -> None:
    environ = {"GATEWAY_PEER_URL": "http://127.0.0.1:8079"}
    if key is not None:
        (tmp_path / "key").write_bytes(key)
        environ["GATEWAY_PEER_KEY_FILE"] = str(tmp_path / "key")
    answer = serve("--port", "0", "--admin-port", "0", **environ)

    assert (answer.returncode, answer.stdout) == (1, "")
    assert help_text in answer.stderr
    assert "xxx" not in answer.stderr
