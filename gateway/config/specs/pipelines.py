"""Pipeline: the stages around a turn, a dispatch and a call, in order.

Which stages there are, and in which order they make sense, is not a matter of shape.
"""

from typing import Literal

from pydantic import Field

from gateway.config.specs.base import Many, Maybe, Some, Spec
from gateway.config.specs.common import Document, Json, OwnedMetadata
from gateway.config.specs.scalars import Name


class Stage(Spec):
    """One step of a pipeline."""

    use: Name = Field(description="Name of the stage.")
    with_: Json = Field({}, description="Options of the stage, checked by the stage itself.")


class Refuses(Spec):
    """Tools that may not run through the pipeline."""

    flags: Some[Name] = Field(description="TrustFlags that such tools carry.")


class PipelineSpec(Spec):
    """Lists of stages; each runs in the order written."""

    turn_input: Many[Stage] = Field((), description="Before a turn begins.")
    dispatch_input: Many[Stage] = Field((), description="Before the calls of an iteration.")
    call: Many[Stage] = Field((), description="Around the backend of each call, after authorisation.")
    dispatch_output: Many[Stage] = Field((), description="After the calls of an iteration.")
    turn_output: Many[Stage] = Field((), description="After a turn.")
    refuses: Maybe[Refuses] = Field(None, description="Tools that may not run through it.")


class PipelineDocument(Document):
    """The stages around a turn, a dispatch and a call."""

    kind: Literal["Pipeline"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Who the document is and who answers for it.")
    spec: PipelineSpec = Field(description="The stages.")
