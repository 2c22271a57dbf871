"""A simulated mail server for the example configuration. It sends nothing.

Its Tool declares `egress`: a mail carries text out of the organisation.
"""

import hashlib
import re
from typing import Any, Final

from gateway.errors import ToolError

_ADDRESS: Final = re.compile(r"[^@\s]{1,64}@[^@\s.]+(\.[^@\s.]+)+")


def send(to: str, subject: str, body: str) -> dict[str, Any]:
    """Return the receipt of a mail; equal mails have equal numbers."""
    if not _ADDRESS.fullmatch(to):
        raise ToolError(f"{to!r} is not a mail address", help="write it as name@example.com", status=422)
    digest = hashlib.sha256("\0".join((to, subject, body)).encode()).hexdigest()
    return {"number": f"M-{digest[:8]}", "to": to, "subject": subject, "bytes": len(body.encode())}
