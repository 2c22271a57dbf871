"""Who is told of approvals."""

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from gateway.config.specs.base import Broken, Many, Some, Spec
from gateway.config.specs.common import Secret
from gateway.config.specs.hosts import is_private
from gateway.config.specs.scalars import Name, PrivateNetwork, Url

Event = Literal["requested", "decided", "expired"]


class Webhook(Spec):
    """A system that is told of approvals: names and a link, never an argument. Telling it decides nothing."""

    name: Name = Field(description="What it is called in logs and in the status.")
    url: Url = Field(description="Address that messages are posted to; https, unless it is on this host.")
    secret: Secret = Field(description="Key that messages are signed with, as the Standard Webhooks specification has.")
    events: Some[Event] = Field(("requested", "decided", "expired"), description="What it is told of.")
    networks: Many[PrivateNetwork] = Field(
        (), description="Private networks that the host's name may lead to; without them, only public addresses."
    )

    def broken_rules(self) -> Iterable[Broken]:
        if not is_private(self.url):
            yield Broken(("url",), "a message only leaves this host over https", "write https://", "bad-url")


def names_taken_twice(webhooks: Sequence[Webhook]) -> Iterable[Broken]:
    """`path` starts where the list stands."""
    known: set[str] = set()
    for index, webhook in enumerate(webhooks):
        if webhook.name in known:
            message = "the name of a webhook is given twice"
            yield Broken(("webhooks", index, "name"), message, "give each its own")
        known.add(webhook.name)
