"""Who may do what, and when: Casbin, gate rules, limits, the one access decision.

May import `model`, `registries` and `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.policy.access import Access
    from gateway.policy.access_answer import (
        STEPS,
        AccessAnswer,
        AccessQuestion,
        AccessStep,
        ToolVisibility,
        fingerprint_of_call,
    )
    from gateway.policy.approver_directory import (
        build_active_approver_directory,
        build_approver_directory,
        check_approvers,
        find_approvers,
        find_common_subject,
    )
    from gateway.policy.authoriser import AccessDecision, AccessRequest
    from gateway.policy.bundle_validity import ConfigExpired, Validity, ValidityState
    from gateway.policy.casbin.lint import KnownNames, find_ended_rows, lint_policies
    from gateway.policy.casbin.period_authoriser import build_authoriser
    from gateway.policy.casbin.policy_files import PermissionRow, PolicyCell, PolicySet, RoleLink, read_policies
    from gateway.policy.casbin.row_end import RowEnd
    from gateway.policy.forward_clock import forward_now
    from gateway.policy.grants.grant import (
        LONGEST_GRANT,
        LONGEST_REASON,
        Grant,
        GrantLedger,
        GrantState,
        require_reason,
    )
    from gateway.policy.grants.grant_service import (
        GrantAction,
        GrantChange,
        GrantHook,
        GrantRights,
        GrantService,
    )
    from gateway.policy.grants.granted_roles import GrantedRoles
    from gateway.policy.grants.lifecycle import revoke_grant
    from gateway.policy.limit_claims import LimitOutcome, acquire_limits, find_amounts, find_refusal, read_amounts
    from gateway.policy.limits import (
        ExceededLimit,
        Limit,
        Limiter,
        LimitExceeded,
        LimitKey,
        LimitReservation,
        LimitStore,
        QuotaLimit,
        QuotaWindow,
        RateLimit,
        TokenBucket,
        encode_limit_key,
        find_window,
    )
    from gateway.policy.rules.cel_syntax_tree import CallNode, ConstantNode, Node, children, parse_expression
    from gateway.policy.rules.condition_lint import ConditionMistake, Scope, find_mistakes, missing_everywhere
    from gateway.policy.rules.conditions import Condition, ConditionScope, Sightings, compile_condition
    from gateway.policy.rules.deciding_part import find_deciding_part
    from gateway.policy.rules.expression_analysis import LONGEST_LOOKBACK, find_saw_flags, line_and_column
    from gateway.policy.rules.gate_checks import (
        ApprovalCheck,
        ArgumentsCheck,
        BudgetCheck,
        ConfirmationCheck,
        Decision,
        FlowCheck,
        LoopCheck,
        PermissionCheck,
        PermissionLookup,
        QuotaCheck,
        RateCheck,
        Weekday,
        WindowCheck,
        WindowInterval,
    )
    from gateway.policy.rules.gate_rules import GateOutcome, GateRule, RuleVerdict
    from gateway.policy.rules.schema_lookup import SchemaView
    from gateway.policy.rules.turn_state import (
        CallBounds,
        InvalidTurnState,
        Taint,
        TurnState,
        load_turn_state,
    )
    from gateway.policy.rules.turn_state_merge import TurnStateWrite, merge_state_writes
    from gateway.policy.stop_list import (
        CallQuarantined,
        KillSwitch,
        QuarantineNotFound,
        RevocationList,
        RevocationNotFound,
        Stop,
        StopChange,
        StopHook,
        StopList,
        StopTarget,
    )
else:
    __getattr__ = lazy_exports(__name__)
