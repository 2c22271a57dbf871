"""Which credentials operations want. They are given in the Upstream document, and never taken from arguments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.openapi.pointers import Pointers
from gateway.openapi.refusals import Unusable

_PLACES: Final = ("header", "query", "cookie")


@dataclass(frozen=True, slots=True)
class SecurityScheme:
    """`kind` is what an Upstream's `auth.scheme` calls it; `parameter` is where a key goes, headers in lower case."""

    kind: str
    parameter: tuple[str, str] | None = None


def security_schemes(root: Mapping[str, Any], pointers: Pointers) -> dict[str, SecurityScheme]:
    """The schemes that are understood, by name."""
    components = root.get("components")
    declared = components.get("securitySchemes") if isinstance(components, dict) else None
    found: dict[str, SecurityScheme] = {}
    for name, each in declared.items() if isinstance(declared, dict) else ():
        try:
            scheme = _scheme(pointers.followed(each))
        except Unusable:
            continue
        if scheme is not None:
            found[str(name)] = scheme
    return found


def wanted_schemes(
    operation: Mapping[str, Any], root: Mapping[str, Any], schemes: Mapping[str, SecurityScheme]
) -> tuple[str, ...]:
    """What an operation may be called with; nothing if it may be called without credentials."""
    wanted = operation.get("security", root.get("security"))
    if not isinstance(wanted, list) or any(not each for each in wanted):
        return ()
    kinds = [
        schemes[name].kind if name in schemes else str(name)[:80]
        for each in wanted
        if isinstance(each, dict)
        for name in each
    ]
    return tuple(dict.fromkeys(kinds))


def _scheme(data: Mapping[str, Any]) -> SecurityScheme | None:
    match data.get("type"):
        case "http":
            scheme = str(data.get("scheme", "")).lower()
            return SecurityScheme(scheme) if scheme in ("bearer", "basic") else None
        case "apiKey":
            place, name = data.get("in"), data.get("name")
            if place not in _PLACES or not isinstance(name, str) or not name:
                return None
            return SecurityScheme(str(place), (str(place), name.lower() if place == "header" else name))
        case "oauth2" | "openIdConnect":
            return SecurityScheme("oauth2")
        case _:
            return None
