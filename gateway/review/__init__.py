"""What a security reviewer reads: access, plan, policy tests.

May import `model`, `policy` and `registries`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.review.access_report import (
        ResourceAccess,
        ToolAccess,
        list_resource_access,
        list_resource_access_for,
        list_tool_access,
        list_tool_access_for,
    )
    from gateway.review.plan.access_changes import Progress
    from gateway.review.plan.builder import Plan, PlanInput, PolicyTestCounts, build_plan
    from gateway.review.plan.document_changes import SourceValues
    from gateway.review.plan.policy_changes import GroupingRow, PolicyRow
    from gateway.review.plan.renderer import plan_data, plan_lines
    from gateway.review.plan.risk import Weight, is_accepted
    from gateway.review.plan.styled_text import Style
    from gateway.review.policy_tests import (
        CaseResult,
        Coverage,
        find_false_condition,
        list_testable_actions,
        measure_coverage,
        run_cases,
    )
    from gateway.review.replay.differences import ReplayResult
    from gateway.review.replay.recorded_calls import CallSelection, RecordedCall, RecordedHistory
    from gateway.review.replay.replay import replay_calls
    from gateway.review.replay.replay_text import replay_data, replay_lines
else:
    __getattr__ = lazy_exports(__name__)
