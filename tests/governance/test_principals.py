"""How callers are shown: never with what could be tried as a credential."""

from gateway.governance.principals import Credential, Principal


def test_id_of_a_credential_is_not_shown() -> None:
    caller = Principal("user:ana", credential=Credential("jwt", "https://issuer", "the-id"))

    assert "the-id" not in f"{caller!r} {caller.credential!r} {caller.credential}"
    assert "https://issuer" in repr(caller.credential)
