"""Credentials for an upstream server: a secret, or tokens that an authorisation server grants."""

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from gateway.config.specs.base import Broken, Many, Maybe, Spec
from gateway.config.specs.common import BasicAuth, BearerAuth, CookieAuth, HeaderAuth, QueryAuth, Secret
from gateway.config.specs.scalars import Line, Url


class CallerAssertion(Spec):
    """How the gateway says, under its own key, who calls. The caller's token is never part of it."""

    issuer: Line = Field(description="Who says so: the name under which the authorisation server knows the gateway.")
    audience: Maybe[Line] = Field(None, description="Whom it is said to; without it, the tokenUrl.")
    algorithm: Literal["ES256", "RS256", "EdDSA", "HS256"] = Field("ES256", description="How it is signed.")
    key: Secret = Field(description="The key it is signed with, as PEM; for HS256 a shared secret.")


class ClientCredentialsAuth(Spec):
    """A token for the gateway itself (OAuth 2.1 client credentials)."""

    scheme: Literal["client-credentials"] = Field(description="A token that is granted to the gateway.")
    token_url: Url = Field(description="Token endpoint of the authorisation server; https, unless it is on this host.")
    client_id: Line = Field(description="Who the gateway is there.")
    client_secret: Secret = Field(description="What proves it.")
    send: Literal["basic", "post"] = Field("basic", description="How the two are sent: as a header or in the form.")
    scopes: Many[Line] = Field((), description="What is asked for.")
    audience: Maybe[Line] = Field(None, description="Whom the token is for, where the server asks for a name.")
    resource: Maybe[Url] = Field(None, description="The same as an address (RFC 8707).")

    def broken_rules(self) -> Iterable[Broken]:
        yield from _overheard(self.token_url)


class TokenExchangeAuth(Spec):
    """A token for each caller, in exchange for the gateway's word on who that is (RFC 8693)."""

    scheme: Literal["token-exchange"] = Field(description="A token that is granted for the caller.")
    token_url: Url = Field(description="Token endpoint of the authorisation server; https, unless it is on this host.")
    client_id: Line = Field(description="Who the gateway is there.")
    client_secret: Secret = Field(description="What proves it.")
    send: Literal["basic", "post"] = Field("basic", description="How the two are sent: as a header or in the form.")
    scopes: Many[Line] = Field((), description="What is asked for.")
    audience: Maybe[Line] = Field(None, description="Whom the token is for, where the server asks for a name.")
    resource: Maybe[Url] = Field(None, description="The same as an address (RFC 8707).")
    assertion: CallerAssertion = Field(description="How the gateway says who calls.")

    def broken_rules(self) -> Iterable[Broken]:
        yield from _overheard(self.token_url)


Granted = ClientCredentialsAuth | TokenExchangeAuth
UpstreamAuth = Annotated[
    BearerAuth | BasicAuth | HeaderAuth | QueryAuth | CookieAuth | ClientCredentialsAuth | TokenExchangeAuth,
    Field(discriminator="scheme"),
]


def _overheard(url: str) -> Iterable[Broken]:
    if not url.startswith("https:") and not _is_this_host(urlsplit(url).hostname or ""):
        yield Broken(("tokenUrl",), "a secret only leaves this host over https", "write https://", "bad-url")


def _is_this_host(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"
