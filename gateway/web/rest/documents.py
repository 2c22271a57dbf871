"""Every shape by the name under which operations and the OpenAPI document speak of it."""

from collections.abc import Mapping
from typing import Final

from gateway.web.rest import approvals, components
from gateway.web.rest.components import Document

REQUESTS: Final[Mapping[str, Document]] = {**components.REQUESTS, **approvals.REQUESTS}
ANSWERS: Final[Mapping[str, Document]] = {**components.ANSWERS, **approvals.ANSWERS}
PATH_PARAMETERS: Final[Mapping[str, str]] = {
    "catalogue": "The name of a catalogue.",
    "name": "The name that the catalogue gives the tool.",
    "turn": "The id of a turn.",
    "callId": "The id of a call.",
    **approvals.PATH_PARAMETERS,
}
