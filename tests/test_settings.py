"""Settings as environment variables give them."""

from datetime import timedelta

import pytest

from gateway.runtime.settings import Settings


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
    with pytest.raises(ValueError, match=r"is no origin: write https://HOST"):
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
        ("https://[fd00::7]:8080", "https://[fd00::7]:8080"),
        ("", None),
    ],
)
def test_address_for_other_gateways_is_taken_as_it_is_meant(given: str, meant: str | None) -> None:
    assert Settings.model_validate({"peer_url": given}).peer_url == meant


@pytest.mark.parametrize("given", ["10.0.0.7:8080", "ftp://a", "http://", "http://a/path"])
def test_address_for_other_gateways_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        Settings.model_validate({"peer_url": given})
