"""Mail that goes nowhere: it stands in for the mail server that the example configuration calls.

What matters about it is what its Tool says: a mail carries text out of the organisation.
"""

import hashlib
import re
from typing import Any, Final

from gateway.errors import ToolError

_ADDRESS: Final = re.compile(r"[^@\s]{1,64}@[^@\s.]+(\.[^@\s.]+)+")


def send(to: str, subject: str, body: str) -> dict[str, Any]:
    """The receipt of a mail: the same mail has the same number."""
    if not _ADDRESS.fullmatch(to):
        raise ToolError(f"{to!r} is not an address", help="write it as name@example.com", status=422)
    digest = hashlib.sha256("\0".join((to, subject, body)).encode()).hexdigest()
    return {"number": f"M-{digest[:8]}", "to": to, "subject": subject, "bytes": len(body.encode())}
