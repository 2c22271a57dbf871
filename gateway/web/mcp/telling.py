"""What a running tool tells its caller, marked with who vouches for it: a tool must not speak in the gateway's name.

Log data goes out in the envelope that results go out in. Progress is shown to people, in one line: it is marked at its
beginning. Both say in `_meta` what the blocks of a result say.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from gateway.core.envelopes import content_envelope, neutralise, nonce_for
from gateway.core.ids import new_token
from gateway.serving.current import ServedCall, current_call
from gateway.serving.turns import Turn
from gateway.web.mcp.results import dumped

MARK: Final = "[untrusted] "
_LONGEST: Final = 2048
"""Characters of a progress message: more is no message."""

_NONCE_OF: Final = "message\n"
"""Keeps the nonces of messages apart from those of results, which begin with a checksum."""

_LOGGER: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class Teller:
    """The tool that speaks. `nonce` is `None` where its catalogue shows texts bare."""

    tool: str
    tier: str | None
    trusted: bool
    nonce: str | None

    def progress(self, message: str) -> dict[str, Any]:
        """The members of a progress notification that hold what the tool says."""
        line = "".join(char if char.isprintable() else _escaped(char) for char in message[:_LONGEST])
        is_marked = not self.trusted and self.nonce is not None
        return {"message": f"{MARK if is_marked else ''}{neutralise(line)}", "_meta": self._meta}

    def log(self, data: Any, logger: str | None) -> dict[str, Any]:
        """The same of a log message. What is no text is JSON inside the envelope."""
        named = {"logger": logger} if logger is not None and _LOGGER.fullmatch(logger) else {}
        return {"data": self._data(data), **named, "_meta": self._meta}

    def _data(self, data: Any) -> Any:
        if self.trusted or self.nonce is None:
            return neutralise(_unicode(data)) if isinstance(data, str) else data
        text = _unicode(data) if isinstance(data, str) else dumped(data).decode()
        attributes = {"kind": "log-message", "tool": self.tool}
        return content_envelope("untrusted", text, nonce=self.nonce, attributes=attributes).render()

    @property
    def _meta(self) -> dict[str, Any]:
        hazard = "inert" if self.trusted else "extractable-instructions"
        return {"tier": self.tier, "trusted": self.trusted, "hazard": hazard}


def teller() -> Teller:
    """Whoever speaks here and now."""
    try:
        call = current_call()
    except LookupError:
        return Teller("", None, False, new_token(16))
    return _teller(call, call.turn) if call.turn is not None else Teller(call.tool, None, False, new_token(16))


def _teller(call: ServedCall, turn: Turn) -> Teller:
    declared = turn.published.tool(turn.stored.catalogue, call.tool)
    is_enveloped = turn.catalogue.catalogue.render == "envelope"
    return Teller(
        call.tool,
        None if declared is None else declared.trust.tier.name,
        declared is not None and declared.trust.trusted,
        nonce_for(turn.ctx.turn_secret, _NONCE_OF, call.id) if is_enveloped else None,
    )


def _unicode(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
