"""What a security reviewer reads: access and its use, attestations, plan, policy tests, replay, the review report.

May import `audit`, `errors`, `model`, `policy` and `registries`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.review.access.access_data import access_data, format_place, scope_data
    from gateway.review.access.access_review import AccessReview, AccessScopes, list_policy_rows, review_access
    from gateway.review.access.access_summary import list_unused_access, summarise_callers, summarise_objects
    from gateway.review.access.attestation import Attestation, AttestedAccess, digest_access, find_growth
    from gateway.review.access.attestation_check import AttestationPolicy, check_attestations, format_growth
    from gateway.review.access.caller_groups import list_review_callers
    from gateway.review.access.effective_access import AccessBlock
    from gateway.review.access.owners import list_owners
    from gateway.review.access.usage import ToolUse, UsageTable, UseCount
    from gateway.review.access_report import (
        ResourceAccess,
        ToolAccess,
        list_resource_access,
        list_resource_access_for,
        list_tool_access,
        list_tool_access_for,
    )
    from gateway.review.grant_report import GrantAccess, list_ending_rows, list_grant_access
    from gateway.review.plan.access_changes import Callers, Progress
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
    from gateway.review.report.oscal import render_oscal
    from gateway.review.report.page import LinkTemplate, render_page
    from gateway.review.report.report_data import ReportData, build_report, report_to_json
    from gateway.review.report.report_input import AuditState, Dependency, DependencyList, ReportInput
    from gateway.review.report.signature import (
        MOST_FILE,
        MOST_SIGNATURE,
        SIGNATURE_SUFFIX,
        SUFFIXES,
        InvalidReport,
        read_signature,
        sign_report,
        verify_report,
    )
else:
    __getattr__ = lazy_exports(__name__)
