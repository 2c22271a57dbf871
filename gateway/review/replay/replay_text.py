"""A replay as text for people and as data for programs. Names come from records: they are escaped visibly."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gateway.model import from_microseconds
from gateway.review.plan.styled_text import Line, StyledText, escape_controls
from gateway.review.replay.differences import (
    CHANGES,
    WIDENING,
    Change,
    Decider,
    ReplayGroup,
    ReplayResult,
    UnreplayedCalls,
)

_BUCKETS: Final[tuple[tuple[str, tuple[Change, ...], bool], ...]] = (
    ("be allowed", ("deny-to-allow", "hold-to-allow"), False),
    ("be refused", ("allow-to-deny", "hold-to-deny", "tool-gone"), True),
    ("be held", ("allow-to-hold",), True),
    ("be held instead of refused", ("deny-to-hold",), True),
    ("be decided by another rule", ("other-rule",), True),
)
"""What would happen to calls, the differences behind it, and whether the newer policy decides it."""

_NAMES: Final = 3


def summarize_replay(result: ReplayResult) -> str:
    """Return the result in plain sentences: what would happen to how many calls, by which rule, from which callers."""
    if not result.calls:
        return "There are no recorded calls to replay."
    parts = [each for words, changes, is_newer in _BUCKETS if (each := _sentence(result, words, changes, is_newer))]
    if not parts:
        compared = result.calls - result.not_replayable
        parts = [f"All {_calls(compared)} would be decided the same."] if compared else []
    if result.not_replayable:
        was = "was" if result.not_replayable == 1 else "were"
        parts.append(f"{result.not_replayable:,} of {_calls(result.calls)} {was} not replayable.")
    return " ".join(parts)


def _sentence(result: ReplayResult, words: str, changes: Sequence[Change], is_newer: bool) -> str:
    groups = [each for each in result.groups if each.change in changes]
    number = sum(each.calls for each in groups)
    if not number:
        return ""
    by = Counter[str]()
    for each in groups:
        by[_by(each.after if is_newer else each.before)] += each.calls
    name, most = by.most_common(1)[0]
    share = "" if most == number else f"{most:,} of them "
    rule = f"{share}by {name}" if is_newer else f"{share}stopped before by {name}"
    return f"{number:,} of {_calls(result.calls)} would {words}, {rule}{_from(groups, number)}."


def _from(groups: Sequence[ReplayGroup], number: int) -> str:
    callers = Counter[str]()
    for each in groups:
        callers.update(dict(each.callers))
    name, most = callers.most_common(1)[0]
    shown = escape_controls(name)
    return f", all from {shown}" if most == number else f", {most:,} of them from {shown}"


def _by(decider: Decider) -> str:
    """Name a rule or a step of the policy in a sentence."""
    name = escape_controls(decider.name)
    steps = {
        "policy": "the policy",
        "tool": "the policy",
        "audience": "the audience",
        "tier": "the tier",
        "lifecycle": "the lifecycle",
        "arguments": "the schema",
    }
    return steps.get(decider.name) or f"rule {name}"


def _calls(number: int) -> str:
    return f"{number:,} call{'' if number == 1 else 's'}"


def replay_lines(result: ReplayResult) -> Iterator[Line]:
    """Yield the lines for people: the summary, then each group of differences, then what could not be replayed."""
    yield (StyledText(summarize_replay(result), "strong"),)
    for group in result.groups:
        yield ()
        yield from _group_lines(group)
    if result.unreplayed:
        yield ()
        yield (StyledText("not replayable", "strong"),)
        for each in result.unreplayed:
            yield (StyledText(f"  {each.calls:>9,}  ", "changed"), StyledText(each.words), _examples(each.examples))
    if result.refused_outside:
        yield ()
        words = (
            f"{_calls(result.refused_outside)} stay refused: the stop list, a changed definition or a failure did it"
        )
        yield (StyledText(words, "quiet"),)


def _group_lines(group: ReplayGroup) -> Iterator[Line]:
    style = "high" if group.change in WIDENING else "changed"
    yield (
        StyledText(f"{group.calls:>11,}  ", style),  # type: ignore[arg-type]  # both are styles
        StyledText(CHANGES[group.change], "strong"),
        StyledText(f"   {_describe(group)}"),
    )
    yield (StyledText(f"             from {_names(group.callers, group.other_callers)}"),)
    yield (StyledText(f"             to {_names(group.tools, group.other_tools)}"),)
    yield (
        StyledText(f"             {_format_time(group.first)} to {_format_time(group.last)}", "quiet"),
        _examples(group.examples),
    )


def _describe(group: ReplayGroup) -> str:
    before, after = group.before, group.after
    if group.change == "other-rule":
        return f"{_place(before)}, now {_place(after)}"
    return _place(before if after.decision == "allow" else after)


def _place(decider: Decider) -> str:
    at = f" at {escape_controls(decider.position)}" if decider.position else ""
    return f"{_by(decider)}{at}"


def _names(names: Sequence[tuple[str, int]], others: int) -> str:
    shown = [f"{escape_controls(name)} ({number:,})" for name, number in names[:_NAMES]]
    rest = others + sum(number for _, number in names[_NAMES:])
    return ", ".join(shown) + (f", others ({rest:,})" if rest else "")


def _examples(ids: Sequence[str]) -> StyledText:
    return StyledText(f"   such as {', '.join(map(escape_controls, ids))}" if ids else "", "quiet")


def _format_time(at: int) -> str:
    return from_microseconds(at).isoformat(timespec="seconds").replace("+00:00", "Z")


def replay_data(result: ReplayResult) -> dict[str, Any]:
    """Return the result as JSON data. Names are as they were recorded."""
    return {
        "revision": result.revision,
        "baseline": result.baseline or "recorded",
        "summary": summarize_replay(result),
        "calls": result.calls,
        "same": result.same,
        "differing": result.differing,
        "notReplayable": result.not_replayable,
        "refusedOutside": result.refused_outside,
        "first": None if result.first is None else _format_time(result.first),
        "last": None if result.last is None else _format_time(result.last),
        "groups": [_group_data(each) for each in result.groups],
        "unreplayed": [_unreplayed_data(each) for each in result.unreplayed],
    }


def _group_data(group: ReplayGroup) -> dict[str, Any]:
    return {
        "change": group.change,
        "before": _decider_data(group.before),
        "after": _decider_data(group.after),
        "calls": group.calls,
        "callers": [{"name": name, "calls": number} for name, number in group.callers],
        "otherCallers": group.other_callers,
        "tools": [{"name": name, "calls": number} for name, number in group.tools],
        "otherTools": group.other_tools,
        "first": _format_time(group.first),
        "last": _format_time(group.last),
        "examples": list(group.examples),
    }


def _decider_data(decider: Decider) -> dict[str, Any]:
    return {"decision": decider.decision, "by": decider.name, "position": decider.position or None}


def _unreplayed_data(each: UnreplayedCalls) -> dict[str, Any]:
    tools = [{"name": name, "calls": number} for name, number in each.tools]
    return {
        "reason": each.obstacle,
        "words": each.words,
        "calls": each.calls,
        "tools": tools,
        "examples": list(each.examples),
    }
