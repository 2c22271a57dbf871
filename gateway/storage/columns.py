"""What columns of turns and calls hold, made of plain values: whoever only writes rows need not know what calls are."""

from typing import Any, NamedTuple

from gateway.core.canonical import canonical, canonical_of_texts


class Owner(NamedTuple):
    """Whose something is: `owner` is compared, people filter by the others."""

    owner: str
    tenant: str | None
    subject: str
    roles: str


def owner_columns(tenant: str | None, subject: str, roles: frozenset[str]) -> Owner:
    return Owner(
        owner_text(tenant, subject),
        None if tenant is None else checked_id(tenant),
        checked_id(subject),
        canonical(sorted(roles)),
    )


def owner_text(tenant: str | None, subject: str) -> str:
    return canonical([tenant, subject])


def result_fields(
    kind: str, text: str | None, key: str | None, type: str | None, byte_length: int | None
) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": kind}
    if text is not None:
        fields["text"] = text
    if key is not None:
        fields["key"] = key
    if type is not None:
        fields["type"] = type
    if byte_length is not None:
        fields["byteLength"] = byte_length
    return fields


def plain_results_text(results: list[dict[str, Any]]) -> str:
    """Of fields without details: the one number in them is a size."""
    return canonical_of_texts(results)


def is_storable(id: str) -> bool:
    """Whether a text can be an id of something stored: half a surrogate pair cannot be written."""
    if id.isascii():
        return True
    try:
        id.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_id(text: str) -> str:
    if not is_storable(text):
        raise ValueError("an id, a subject or a tenant holds half a surrogate pair and cannot be written")
    return text


def writable(text: str) -> str:
    """What describes, but does not identify, is written as well as it can be: half a pair becomes U+FFFD."""
    return text if is_storable(text) else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
