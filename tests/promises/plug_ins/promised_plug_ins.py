"""Artifact classes as a company would write them, and invalid ones."""

from typing import ClassVar

from gateway import ArtifactTool, Media, SpooledArtifact, ToolMethod


class Repeating(SpooledArtifact):
    """Lists a query that the base class has."""

    tool_methods: ClassVar = (ToolMethod("artifact_head", "head", "Returns its first lines, again."),)


class Binary(SpooledArtifact):
    tool_methods: ClassVar = (ToolMethod("artifact_raw", "raw", "Returns bytes.", serialise=lambda answer: answer),)

    async def raw(self) -> bytes:
        return b"\x00"


class NotOne:
    """Has none of the seven methods."""


class Picture(Media):
    """Media is shown, not queried."""


class Query(ArtifactTool):
    """A query is not an artifact."""
