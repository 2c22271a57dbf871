"""The repr of a principal never shows anything that could be used as a credential."""

from gateway.model.caller import Credential, Principal


def test_id_of_a_credential_is_not_shown() -> None:
    caller = Principal("user:ana", credential=Credential("jwt", "https://issuer", "the-id"))

    assert "the-id" not in f"{caller!r} {caller.credential!r} {caller.credential}"
    assert "https://issuer" in repr(caller.credential)
