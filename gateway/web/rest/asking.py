"""Asked: a request as operations see it. Who asks is known; parameters and body have the shape they must have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from gateway.core.schemas import Schema
from gateway.errors import ValidationException
from gateway.governance.principals import Principal
from gateway.serving.observing import SeenRequest
from gateway.web.bodies import (
    BodyTooLarge,
    BodyTooSlow,
    NotStrictJson,
    Receive,
    TooManyBodyValues,
    parsed_strictly,
    read_body,
)
from gateway.web.rest.refusals import InvalidRequest, NotJsonContent, TooLarge, TooManyJsonValues, TooSlow, invalid

RawHeaders = Sequence[tuple[bytes, bytes]]

_MAX_PARAMETERS: Final = 32


@dataclass(frozen=True, slots=True)
class Asked:
    """`caller` is `None` only where anybody may ask."""

    caller: Principal | None
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any
    headers: RawHeaders
    is_head: bool = False
    """Whether only the head of the answer is wanted."""
    seen: SeenRequest | None = None
    """Whoever observes the request."""

    @property
    def principal(self) -> Principal:
        assert self.caller is not None, "the operation needs a principal"  # noqa: S101 - held by the endpoint
        return self.caller

    def header(self, name: bytes) -> str | None:
        """A header that may be given once. Two would be read by two readers in two ways."""
        found = [value for key, value in self.headers if key == name]
        if len(found) > 1:
            raise InvalidRequest(f"the header {name.decode()} is given twice")
        return found[0].decode("latin-1").strip() if found else None


async def read_json(receive: Receive, headers: RawHeaders, *, limit: int, schema: Schema) -> Any:
    """The body, exactly as it was sent. Raises what the caller is to be told."""
    named = dict(headers)
    kind = named.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json" or named.get(b"content-encoding", b"identity").lower() != b"identity":
        raise NotJsonContent()
    if len(named) != len(headers) and _disagree(headers):
        raise NotJsonContent()
    declared = named.get(b"content-length", b"0")
    if declared.isdigit() and int(declared[:20]) > limit:
        raise _too_large(limit)
    try:
        body = await parsed_strictly(await read_body(receive, limit=limit))
    except BodyTooLarge:
        raise _too_large(limit) from None
    except BodyTooSlow:
        raise TooSlow() from None
    except TooManyBodyValues as error:
        raise TooManyJsonValues(f"the body cannot be read: {error}") from None
    except NotStrictJson as error:
        raise InvalidRequest(f"the body cannot be read: {error}") from None
    if not schema.accepts_parsed(body):
        _refuse(schema, body)
    return body


def _disagree(headers: RawHeaders) -> bool:
    """Whether a header that says what the body is stands there twice: two readers may look at different ones."""
    given = [name for name, _ in headers if name in (b"content-type", b"content-encoding")]
    return len(set(given)) != len(given)


def read_query(query: bytes, schema: Schema) -> dict[str, Any]:
    """Parameters with their types and defaults; unknown ones and those given twice are refused."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except ValueError:
        raise InvalidRequest("the query is not a list of parameters") from None
    given = dict(pairs)
    if len(given) != len(pairs):
        raise InvalidRequest("a query parameter is given twice")
    try:
        parameters: dict[str, Any] = schema.coerce(given)
    except ValidationException as error:
        raise invalid("the query", error) from None
    return parameters


def _refuse(schema: Schema, body: Any) -> None:
    try:
        schema.accepted(body)
    except ValidationException as error:
        raise invalid("the body", error, help=_members(schema, body)) from None


def _members(schema: Schema, body: Any) -> str | None:
    """What the body may have, for whoever gave something else."""
    known = schema.describe().get("properties", {})
    if not known or not isinstance(body, dict) or body.keys() <= known.keys():
        return None
    inside = "; those of the tool go into 'arguments'" if "arguments" in known else ""
    return f"the body takes {', '.join(known)}{inside}"


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes")
