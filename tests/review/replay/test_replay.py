"""Replays of recorded calls: every kind of difference, and every reason why a call cannot be replayed."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.model.caller import Principal
from gateway.policy.access import Access
from gateway.review.replay.differences import Change, Obstacle
from gateway.review.replay.recorded_calls import CallSelection, RecordedCall
from gateway.review.replay.replay_text import replay_data, replay_lines, summarize_replay
from tests.review.replay.every_rule import CHECKS, POLICY
from tests.review.replay.sample_calls import ANA, NOON, access_of, only_group, recorded, replay

HOUR = 3_600_000_000


@pytest.fixture(scope="module")
def present(tmp_path_factory: pytest.TempPathFactory) -> Access:
    return access_of(tmp_path_factory.mktemp("present"))


BIG = {"text": "a", "amount": 501}
DENIED: dict[str, Any] = {"decision": "deny", "reason": "rule-denied", "rules": ("old-rule",), "position": "old.yaml:3"}
HELD: dict[str, Any] = {
    "decision": "hold",
    "reason": "approval-pending",
    "rules": ("old-rule",),
    "position": "old.yaml:3",
}
DIFFERENT: list[tuple[Change, RecordedCall, str]] = [
    ("allow-to-deny", recorded("small_amounts", arguments=BIG), "small_amounts"),
    ("allow-to-hold", recorded("approved"), "approved"),
    ("hold-to-deny", recorded("small_amounts", arguments=BIG, **HELD), "small_amounts"),
    ("deny-to-hold", recorded("approved", **DENIED), "approved"),
    ("hold-to-allow", recorded("plain", **HELD), "policy"),
    ("deny-to-allow", recorded("plain", **DENIED), "policy"),
    ("other-rule", recorded("small_amounts", arguments=BIG, **DENIED), "small_amounts"),
    ("tool-gone", recorded("forgotten"), "tool"),
    ("allow-to-deny", recorded("denied"), "policy"),
]


@pytest.mark.parametrize(("change", "call", "by"), DIFFERENT, ids=[f"{each[0]}-{each[2]}" for each in DIFFERENT])
def test_difference_names_what_decided_before_and_now(
    present: Access, change: Change, call: RecordedCall, by: str
) -> None:
    group = only_group(replay([call], present))

    assert (group.change, group.after.name, group.calls) == (change, by, 1)
    assert group.examples == (call.id,)
    assert (group.callers, group.tools) == (((call.subject, 1),), ((call.tool, 1),))
    if call.rules:
        assert (group.before.name, group.before.position) == ("old-rule", "old.yaml:3")
    if by in CHECKS:
        assert group.after.position.rpartition("/")[2].startswith("all.yaml:")


def test_equal_differences_are_one_group_with_three_examples(present: Access) -> None:
    calls = [recorded("small_amounts", arguments=BIG, after=each, turn=f"t{each}") for each in range(5)]
    group = only_group(replay(calls, present))

    assert group.calls == 5
    assert group.examples == tuple(each.id for each in calls[:3])
    assert (group.first, group.last) == (calls[0].at, calls[4].at)


def test_call_that_people_approved_was_held_and_ran(present: Access) -> None:
    approved = recorded("approved", reason="approval-approved", rules=("approved",))
    refused = recorded("approved", decision="deny", reason="approval-refused", rules=("approved",))
    confirmed = recorded("confirmed", reason="confirmed", rules=("confirmed",))

    assert replay([approved, refused, confirmed], present).groups == ()


def test_held_call_that_is_not_asked_about_any_more_is_a_difference(tmp_path: Path) -> None:
    relaxed = access_of(tmp_path, approved=None)
    call = recorded("approved", reason="approval-approved", rules=("approved",))

    assert only_group(replay([call], relaxed)).change == "hold-to-allow"


@pytest.mark.parametrize("reason", ["quarantined", "definition-changed", "backend-spared", "check-failed"])
def test_refusal_that_no_policy_made_stays_one(present: Access, reason: str) -> None:
    result = replay([recorded("plain", decision="deny", reason=reason)], present)

    assert (result.groups, result.refused_outside, result.same) == ((), 1, 1)


# --- order and time ---


def test_rate_is_replayed_with_the_time_of_each_call(tmp_path: Path) -> None:
    stricter = access_of(tmp_path, rate={"type": "rate", "limit": 1, "per": "10s"})
    calls = [recorded("rate", after=after) for after in (0, 1, 11, 12, 30)]
    group = only_group(replay(calls, stricter))

    assert group.change == "allow-to-deny"
    assert group.examples == (calls[1].id, calls[3].id)


def test_quota_counts_in_windows_and_only_calls_that_run(tmp_path: Path) -> None:
    stricter = access_of(tmp_path, quota={"type": "quota", "limit": 2, "per": "1h"})
    refused = recorded("quota", decision="deny", reason="arguments-invalid", arguments={"text": 1})
    calls = [refused, *(recorded("quota", after=after) for after in (1, 2, 3, 3601))]
    group = only_group(replay(calls, stricter))

    assert group.examples == (calls[3].id,)


def test_loop_counts_the_same_call_in_one_turn(present: Access) -> None:
    calls = [recorded("loop", after=each, turn="one") for each in range(3)]
    calls += [recorded("loop", after=5, turn="two"), recorded("loop", after=6, turn="one", arguments={"text": "b"})]
    group = only_group(replay(calls, present))

    assert (group.after.name, group.examples) == ("loop", (calls[2].id,))


def test_calls_without_a_turn_share_the_state_of_their_caller_until_it_idles(present: Access) -> None:
    alone = [recorded("loop", after=after, turn=f"t{after}", implicit="one") for after in (0, 1, 2, 3 * 3600)]
    other = recorded("loop", after=2.5, turn="t9", implicit="two")
    group = only_group(replay([*alone[:3], other, alone[3]], present))

    assert group.examples == (alone[2].id,)


def test_turn_that_continues_a_call_without_one_keeps_what_it_saw(present: Access) -> None:
    fetched = recorded("fetch", turn="turn_a", implicit="one")
    continued = recorded("tainted", after=1, turn="turn_a")
    fresh = recorded("tainted", after=2, turn="turn_b")

    assert only_group(replay([fetched, continued, fresh], present)).examples == (continued.id,)


def test_taint_comes_from_calls_that_run_under_the_replayed_policy(tmp_path: Path) -> None:
    calls = [recorded("fetch"), recorded("tainted", after=1)]

    assert only_group(replay(calls, access_of(tmp_path / "1"))).after.name == "tainted"
    forbidden = access_of(tmp_path / "2", policy=POLICY + "p, role:agent, *, tool:fetch, invoke, community, deny\n")
    groups = replay(calls, forbidden).groups
    assert [(each.change, each.tools) for each in groups] == [("allow-to-deny", (("fetch", 1),))]


def test_class_must_not_flow_to_a_tool_once_a_turn_has_read_it(present: Access) -> None:
    calls = [recorded("secret"), recorded("send", after=1), recorded("send", after=2, turn="turn_2")]

    assert only_group(replay(calls, present)).examples == (calls[1].id,)


def test_query_reads_the_result_of_its_maker(present: Access) -> None:
    made = recorded("secret", turn="one", artifact="secrets")
    query = {"callId": made.id, "pattern": "1"}
    grep = recorded("artifact_grep", turn="two", after=1, arguments=query, artifact=None)
    sent = recorded("send", turn="two", after=2)

    assert only_group(replay([made, grep, sent], present)).examples == (sent.id,)


def test_prompt_or_resource_that_is_not_declared_makes_the_turn_unknown(present: Access) -> None:
    read = recorded("prompt:wiki.review", reads="prompt:wiki.review")
    result = replay([read, recorded("loop", after=1)], present)

    assert (result.calls, [each.obstacle for each in result.unreplayed]) == (1, ["turn"])


def test_bytes_count_when_a_call_ends(present: Access) -> None:
    first = recorded("budget_of_bytes", size=600, ended=recorded(after=10).at)
    during, later = recorded("budget_of_bytes", after=5), recorded("budget_of_bytes", after=11)

    assert only_group(replay([first, during, later], present)).examples == (later.id,)


def test_caller_saw_a_flag_in_any_turn(present: Access) -> None:
    calls = [recorded("fetch", turn="one"), recorded("seen", after=60, turn="two"), recorded("seen", after=3600)]

    assert only_group(replay(calls, present)).examples == (calls[1].id,)


def test_time_window_uses_the_time_of_the_call(tmp_path: Path) -> None:
    window = {"type": "window", "timezone": "UTC", "open": [{"days": ["thu"], "from": "00:00", "to": "12:00"}]}
    closes = access_of(tmp_path, window_open=window)
    calls = [recorded("window_open", after=-10), recorded("window_open", after=10)]

    assert only_group(replay(calls, closes)).examples == (calls[1].id,)


def test_decision_at_the_very_edge_agrees_with_the_record(tmp_path: Path) -> None:
    window = {"type": "window", "timezone": "UTC", "open": [{"days": ["thu"], "from": "00:00", "to": "12:00"}]}
    closes = access_of(tmp_path, window_open=window)

    assert replay([recorded("window_open", after=0.001)], closes).groups == ()


# --- what cannot be replayed ---


MISSING: list[tuple[Obstacle, Sequence[RecordedCall], dict[str, Any]]] = [
    ("arguments", [recorded("small_amounts", arguments=None, fingerprint="f")], {}),
    ("arguments", [recorded("plain", arguments=None, decision=None, reason="arguments-invalid")], {}),
    ("arguments-masked", [recorded("small_amounts", arguments={"text": "a"}, masked=frozenset({"amount"}))], {}),
    ("source", [recorded("artifact_grep", arguments={"callId": "unknown", "pattern": "a"})], {}),
    ("turn", [recorded("loop", turn=None)], {}),
    ("turn", [recorded("loop", implicit="x")], {"complete_since": recorded(after=-60).at}),
    ("turn", [recorded("loop")], {"complete_since": recorded(after=-60).at, "are_turns_whole": False}),
    ("turn", [recorded("seen")], {"complete_since": recorded(after=-60).at}),
    ("counts", [recorded("quota", after=600)], {"complete_since": recorded(after=60).at}),
    ("counts", [recorded("rate_of_all")], {"complete_since": recorded(after=-1).at}),
    ("result-size", [recorded("budget_of_bytes", **HELD), recorded("budget_of_bytes", after=1)], {}),
    ("caller", [recorded("plain", principal=None)], {}),
    ("decision", [recorded("plain", decision=None, reason=None)], {}),
]


@pytest.mark.parametrize(("obstacle", "calls", "history"), MISSING, ids=[each[0] for each in MISSING])
def test_call_is_not_replayable_without_the_facts(
    present: Access, obstacle: Obstacle, calls: Sequence[RecordedCall], history: dict[str, Any]
) -> None:
    result = replay(calls, present, **history)

    assert [(each.obstacle, each.calls) for each in result.unreplayed] == [(obstacle, 1)]
    assert result.unreplayed[0].examples == (calls[-1].id,)
    assert result.not_replayable == 1


def test_denial_is_certain_whatever_is_not_on_record(present: Access) -> None:
    call = recorded("window_shut", arguments=None, fingerprint=None, after=0)
    today = access_day(present)

    assert only_group(replay([move(call, today)], present)).change == "allow-to-deny"


def access_day(access: Access) -> int:
    """Return a time on the closed day of the rule."""
    check: Any = access.snapshot.gates["window_shut"].check
    [day] = check.closed
    return int((NOON.replace(year=day.year, month=day.month, day=day.day)).timestamp() * 1e6)


def move(call: RecordedCall, at: int) -> RecordedCall:
    call.at, call.ended = at, at
    return call


def test_refusals_that_were_only_counted_are_not_replayable(present: Access) -> None:
    result = replay([recorded()], present, unrecorded=7)

    assert (result.calls, result.same, result.not_replayable) == (8, 1, 7)
    assert result.unreplayed[0].obstacle == "not-recorded"


def test_counts_are_complete_again_after_a_whole_window(present: Access) -> None:
    since = recorded(after=-2 * 3600).at
    result = replay([recorded("quota")], present, complete_since=since)

    assert (result.same, result.unreplayed) == (1, ())


def test_sizes_are_not_needed_by_rules_that_count_calls(present: Access) -> None:
    calls = [recorded("budget", size=None), recorded("budget", after=1)]

    assert replay(calls, present).unreplayed == ()


# --- selection and baseline ---


def test_other_calls_count_but_are_not_compared(present: Access) -> None:
    eve = Principal("user:eve", frozenset({"role:agent"}))
    calls = [recorded("loop", after=each) for each in range(3)]
    calls += [recorded("small_amounts", arguments=BIG, principal=eve, subject=eve.subject)]

    by_time = replay(calls, present, selection=CallSelection(since=calls[2].at))
    by_tool = replay(calls, present, selection=CallSelection(tools=frozenset({"loop"})))
    by_caller = replay(calls, present, selection=CallSelection(callers=frozenset({"user:eve"})))

    assert (by_time.calls, only_group(by_time).examples) == (1, (calls[2].id,))
    assert (by_tool.calls, only_group(by_tool).tools) == (3, (("loop", 1),))
    assert (by_caller.calls, only_group(by_caller).callers) == (1, (("user:eve", 1),))


def test_baseline_replaces_the_record(present: Access, tmp_path: Path) -> None:
    relaxed = access_of(tmp_path, small_amounts=None)
    calls = [recorded("small_amounts", arguments=BIG), recorded("plain", **DENIED)]

    result = replay(calls, relaxed, baseline=present)

    assert only_group(result).change == "deny-to-allow"
    assert result.baseline == present.snapshot.revision
    assert result.is_widened


def test_progress_counts_calls(present: Access) -> None:
    from gateway.review.replay.recorded_calls import RecordedHistory
    from gateway.review.replay.replay import replay_calls

    seen: list[int] = []
    replay_calls(RecordedHistory([recorded() for _ in range(1_000)]), present, progress=seen.append)

    assert seen == [500, 1000]


# --- text and data ---


def test_summary_says_how_many_by_which_rule_from_which_caller(present: Access) -> None:
    calls = [recorded("small_amounts", arguments=BIG, after=each) for each in range(3)]
    calls += [recorded("denied", after=4), recorded("plain", after=5)]

    assert summarize_replay(replay(calls, present)) == (
        "4 of 5 calls would be refused, 3 of them by rule small_amounts, all from user:ana."
    )
    assert summarize_replay(replay([recorded()], present)) == "All 1 call would be decided the same."
    assert summarize_replay(replay([], present)) == "There are no recorded calls to replay."
    assert summarize_replay(replay([recorded("plain", principal=None)], present)) == ("1 of 1 call was not replayable.")


def test_names_of_records_are_escaped_for_people_and_kept_for_programs(present: Access) -> None:
    name = "user:\u202eeve\u200b\x1b[31m"
    eve = Principal(name, frozenset({"role:agent"}))
    result = replay([recorded("denied", principal=eve, subject=name)], present)
    shown = "\n".join("".join(span.text for span in line) for line in replay_lines(result))

    assert "user:\\u202eeve\\u200b\\u001b[31m" in shown
    assert not {"\u202e", "\u200b", "\x1b"}.intersection(shown)
    assert replay_data(result)["groups"][0]["callers"] == [{"name": name, "calls": 1}]


def test_data_has_every_part(present: Access) -> None:
    calls = [recorded("denied"), recorded("plain", principal=None), recorded("plain")]
    data = replay_data(replay(calls, present))

    assert data["calls"] == data["same"] + data["differing"] + data["notReplayable"] == 3
    assert set(data) == {
        *("revision", "baseline", "summary", "calls", "same", "differing", "notReplayable", "refusedOutside"),
        *("first", "last", "groups", "unreplayed"),
    }
    assert data["baseline"] == "recorded"
    [group] = data["groups"]
    assert group["after"]["by"] == "policy"
    assert group["after"]["position"].endswith("policies/policy.csv:3")
    assert data["unreplayed"][0]["reason"] == "caller"


def test_many_names_are_counted_together(present: Access) -> None:
    principals = [Principal(f"user:{number}", ANA.roles) for number in range(30)]
    calls = [recorded("denied", principal=each, subject=each.subject) for each in principals]
    group = only_group(replay(calls, present))

    assert (len(group.callers), group.other_callers) == (20, 10)


def test_times_are_days_of_the_record(present: Access) -> None:
    shown = replay_data(replay([recorded(), recorded(after=timedelta(days=1).total_seconds())], present))

    assert (shown["first"], shown["last"]) == ("2026-11-19T12:00:00Z", "2026-11-20T12:00:00Z")
