"""Which addresses never leave this machine."""

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_private(url: str) -> bool:
    """Whether nobody on the way can read or change what is sent there: over https, or to this very host."""
    return url.startswith("https:") or _is_this_host(urlsplit(url).hostname or "")


def _is_this_host(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"
