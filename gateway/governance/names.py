"""When two names are one to a reader: differing in case and separators only, or in characters that look alike."""

import unicodedata
from typing import Final

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
