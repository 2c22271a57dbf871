"""From a credential to a principal: tokens, keys of issuers, providers.

May import `model`, `policy` (revoked tokens) and `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.identity.authenticator import (
        Authenticator,
        build_challenge,
        issuer_metadata,
        protected_resource_metadata,
    )
    from gateway.identity.credentials import TOKEN_PREFIX, new_api_token
    from gateway.identity.provider_settings import (
        AnonymousProvider,
        ApiToken,
        FileKeySettings,
        IdentityProvider,
        JwtProvider,
        TokenProvider,
        UrlKeySettings,
    )
else:
    __getattr__ = lazy_exports(__name__)
