"""How a catalogue lets in more, and how names are guarded less."""

from collections.abc import Iterator
from typing import Final

from gateway.review.controls.common import Spec, Weakness, added, at, dropped, is_further

_HONOURED: Final = ("never", "sameOrHigherTrust", "always")


def weaker_catalogue(before: Spec, after: Spec) -> Iterator[Weakness]:
    kept = {frozenset(flags) for flags in at(after, "forbidTogether", ())}
    for flags in at(before, "forbidTogether", ()):
        if frozenset(flags) not in kept:
            yield Weakness("combination-allowed", "forbidTogether", " + ".join(flags))
    yield from _waivers(before, after)
    if len([each for each in at(before, "exclude", ()) if each not in at(after, "exclude", ())]):
        yield Weakness("exclude-removed", "exclude")
    if names := added(before, after, "audience"):
        yield Weakness("audience-widened", "audience", ", ".join(names))
    if at(after, "publish.render", "envelope") == "plain" and at(before, "publish.render", "envelope") != "plain":
        yield Weakness("envelope-dropped", "publish.render")
    if at(after, "publish.structured", "raw") == "raw" and at(before, "publish.structured", "raw") != "raw":
        yield Weakness("json-unmarked", "publish.structured")
    protocols = ("mcp", "http")
    if names := sorted(set(at(after, "publish.as", protocols)) - set(at(before, "publish.as", protocols))):
        yield Weakness("protocol-added", "publish.as", ", ".join(names))


def new_catalogue(after: Spec) -> Iterator[Weakness]:
    yield from _waivers({}, after)
    if at(after, "publish.render", "envelope") == "plain":
        yield Weakness("envelope-dropped", "publish.render")


def _waivers(before: Spec, after: Spec) -> Iterator[Weakness]:
    last_days: dict[frozenset[str], str] = {}
    for waiver in at(before, "waivers", ()):
        flags = frozenset(waiver["forbidTogether"])
        last_days[flags] = max(waiver["until"], last_days.get(flags, ""))
    for waiver in at(after, "waivers", ()):
        last_day = last_days.get(frozenset(waiver["forbidTogether"]))
        note = f"{' + '.join(waiver['forbidTogether'])} until {waiver['until']}, by {waiver['by']}"
        if last_day is None:
            yield Weakness("waiver-added", "waivers", note)
        elif waiver["until"] > last_day:
            yield Weakness("waiver-prolonged", "waivers", note)


def weaker_collisions(before: Spec, after: Spec) -> Iterator[Weakness]:
    honoured = (at(before, "honourTool", _HONOURED[1]), at(after, "honourTool", _HONOURED[1]))
    if is_further(*honoured, order=_HONOURED):
        yield Weakness("honour-tool-widened", "honourTool")
    for path, strict in (("onCollision", "throw"), ("names.compare", "folded"), ("names.lookalikes", "throw")):
        if at(before, path, strict) == strict != at(after, path, strict):
            yield Weakness("collisions-relaxed", path)
    if names := dropped(before, after, "names.reserved"):
        yield Weakness("collisions-relaxed", "names.reserved", ", ".join(names))
    if at(before, "order") != at(after, "order"):
        yield Weakness("collisions-relaxed", "order", "another tool is the incoming one")
