"""How the decision log is kept: the key of its hashes, and where anchors of it go."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Final

from pydantic import Field

from gateway.config.specs.base import Broken, Maybe, OnlyTrue, Spec
from gateway.config.specs.common import Secret
from gateway.config.specs.scalars import Duration, FilePath

_OFTEN: Final = timedelta(seconds=1)
_SELDOM: Final = timedelta(days=1)


class Anchors(Spec):
    """Signed statements of how far the log has come, kept where whoever can change the log cannot change them."""

    path: FilePath = Field(
        description="File that they are appended to, relative to the working directory; its folder must be there."
    )
    signing_key: Secret = Field(description="Ed25519 private key in PEM; gateway audit keygen FILE makes one.")
    every: Duration = Field(timedelta(seconds=60), description="How long an entry waits for an anchor at most.")
    entries: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        1000, description="After how many entries one is written at the latest."
    )

    def broken_rules(self) -> Iterable[Broken]:
        if not _OFTEN <= self.every <= _SELDOM:
            yield Broken(("every",), "anchors are only 1s to 1d apart", "60s is usual", "bad-duration")


class Audit(Spec):
    """How the decision log is kept. What cannot be written there does not run."""

    key: Maybe[Secret] = Field(
        None,
        description="Key of the hashes of arguments and results, 32 random bytes; gateway audit keygen --for contents "
        "FILE makes one. Without it each process makes up its own, and hashes of two processes cannot be compared.",
    )
    anchors: Maybe[Anchors] = Field(
        None, description="Where anchors go; without them, a log that was cut off or written anew is not noticed."
    )
    required: OnlyTrue = Field(True, description="No entry, no call; there is no other choice.")
