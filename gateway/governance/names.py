"""How names are written, and when two of them are one to a reader: alike but for case and separators, or to the eye.

Documents and policies take their alphabets from here, so that what one of them accepts the other can say.
"""

import unicodedata
from typing import Final

SUBJECT_KINDS: Final = ("user", "agent", "service", "role")
OBJECT_KINDS: Final = ("tool", "class", "catalogue", "approval", "prompt", "resource")
CONFIG: Final = "config"
"""The one object without a kind: the gateway's own configuration."""

NAME: Final = r"[A-Za-z0-9_.-]{1,128}"
PATTERN: Final = r"(?:[A-Za-z0-9_.-]|\*(?!\*)){1,128}"
"""A name in which single stars may stand."""

SUBJECT_NAME: Final = r"[A-Za-z0-9_.@+=/:~|-]{1,256}"
"""What stands behind a subject's kind; identity providers use `@`, `/`, `:` and `|` in theirs."""

_SEPARATORS: Final = str.maketrans("", "", "-_. ")
_TWINS: Final = str.maketrans(
    # Digits and the letters they pass for, then Cyrillic and Greek letters drawn like Latin ones.
    "01358|" + "авеёкмнорсухіјѕһԁԛԝӏ" + "αβεηικνορτυχω",
    "olesbl" + "abeekmhopcyxijshdqwl" + "abenikvoptuxw",
)


def folded(name: str) -> str:
    """The name without case and separators: `Ticket-Create` and `ticket_create` fold alike."""
    return name.casefold().translate(_SEPARATORS)


def skeleton(name: str) -> str:
    """What the name looks like: compatibility forms, accents, twins and `rn` for `m` are taken away."""
    decomposed = unicodedata.normalize("NFKD", name).casefold()
    bare = "".join(char for char in decomposed if not unicodedata.combining(char) and char.isprintable())
    return bare.translate(_SEPARATORS).translate(_TWINS).replace("rn", "m").replace("vv", "w")
