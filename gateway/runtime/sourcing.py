"""Where a project comes from. What is taken is read once, and known by its digest; here from a folder, in place."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from gateway.assembly import Project
from gateway.bundles.contents import Contents, Sign, contents_of, digest_in, sign_of


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Taken:
    """A project as it was at one moment. `project` is where it can be read, until it is released."""

    project: Project
    contents: Callable[[], Contents]
    """Its files. Raises `GatewayError` where they cannot be had."""
    digest: str
    about: Mapping[str, Any]
    """Where it came from, for whoever asks."""
    release: Callable[[], None] = _nothing
    """Told when nobody reads there any more."""
    use: Callable[[], None] = _nothing
    """Told that it comes into force, just before. Blocks; raises `GatewayError` if it must not."""
    content: bytes | None = None
    """The bundle that it came as."""
    warning: str | None = None
    """What deserves attention as long as it is served."""
    until: datetime | None = None
    """When it stops to count, if it does."""


class Source(Protocol):
    def take(self) -> Taken:
        """What is there now. Blocks; raises `GatewayError`."""
        ...

    def sign(self) -> Sign:
        """Another one as soon as there may be something else to take. Blocks."""
        ...

    def is_still(self, taken: Taken) -> bool:
        """Whether what was read from where it was taken is what was taken: a folder may be written to meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class FolderSource:
    """Folders of documents and of policies, read in place."""

    project: Project

    def take(self) -> Taken:
        folders = self._folders
        return Taken(
            self.project, lambda: contents_of(folders), digest_in(folders), {"folder": str(self.project.configs)}
        )

    def sign(self) -> Sign:
        return sign_of(self._folders)

    def is_still(self, taken: Taken) -> bool:
        return digest_in(self._folders) == taken.digest

    @property
    def _folders(self) -> dict[str, Path]:
        return {"configs": self.project.configs, "policies": self.project.policies}
