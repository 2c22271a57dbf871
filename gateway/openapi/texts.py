"""Names and descriptions of a document, which a stranger may have written: bounded, and without control characters."""

import re
from hashlib import sha256
from typing import Any, Final

MAX_NAME: Final = 64
"""Characters that every model's provider lets a tool or an argument have."""

MAX_TEXT: Final = 4096

_OTHER: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def slug(text: str) -> str:
    """A name of letters, digits, `_`, `-` and `.`; what is too long ends in a digest of the whole."""
    plain = _OTHER.sub("_", text).strip("_.-")
    if len(plain) <= MAX_NAME:
        return plain
    return f"{plain[: MAX_NAME - 9]}_{sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def prose(value: Any, *, limit: int = MAX_TEXT) -> str:
    """A text as models may read it, or nothing."""
    if not isinstance(value, str):
        return ""
    plain = _CONTROL.sub("", value.replace("\r\n", "\n")).encode("utf-8", "replace").decode("utf-8").strip()
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"
