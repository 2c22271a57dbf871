"""References inside one document. What leads out of it is refused: nothing is fetched because a document says so."""

from typing import Any, Final
from urllib.parse import unquote

from gateway.openapi.refusals import Unusable

_MAX_CHAIN: Final = 32


class Pointers:
    """Finds what a `$ref` of the document stands for."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root

    def followed(self, node: Any) -> dict[str, Any]:
        """The object that a node is or refers to. Raises `Unusable` if there is none."""
        for _ in range(_MAX_CHAIN):
            if not isinstance(node, dict):
                raise Unusable("a mapping is expected where there is none")
            if "$ref" not in node:
                return node
            node = self.at(node["$ref"])
        raise Unusable("references lead in a circle")

    def at(self, reference: Any) -> Any:
        """What stands at a local pointer (`#/components/schemas/Pet`)."""
        found: Any = self._root
        for step in _steps(reference):
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isdecimal() and len(step) < 7 and int(step) < len(found):
                found = found[int(step)]
            else:
                raise Unusable(f"the reference {shown(reference)} leads nowhere")
        return found


def shown(text: Any) -> str:
    """Somebody else's text, short and with escapes for what a screen would hide."""
    return ascii(text if len(str(text)) <= 80 else f"{str(text)[:79]}…")


def _steps(reference: Any) -> list[str]:
    if not isinstance(reference, str):
        raise Unusable("a reference is not a text")
    if not reference.startswith("#"):
        raise Unusable(f"the reference {shown(reference)} leads out of the document")
    if reference == "#":
        return []
    if not reference.startswith("#/"):
        raise Unusable(f"the reference {shown(reference)} is no path from the root of the document")
    return [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference[2:].split("/")]
