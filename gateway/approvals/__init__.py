"""Asking people: approvals, their lifecycle, what approvers see, webhooks.

May import `backends` (HTTP connections), `model` and `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.approvals.approval_store import (
        APPROVAL_STATES,
        ApprovalChange,
        ApprovalEvent,
        ApprovalFilter,
        ApprovalRecord,
        ApprovalRequest,
        ApprovalState,
        ApprovalStore,
        ApprovalSubject,
        ApprovalTransaction,
        ApprovalVote,
        Vote,
        WebhookDelivery,
        make_action,
    )
    from gateway.approvals.errors import (
        ApprovalMismatch,
        ApprovalPending,
        ApprovalVoid,
        ConfirmationImpossible,
        ConfirmationPending,
        ConfirmationRefused,
        GateRefused,
        UnknownApproval,
    )
    from gateway.approvals.lifecycle import HoldState, HoldStatus
    from gateway.approvals.presentation import escape_invisible, format_question
    from gateway.approvals.service import (
        MAX_NOTE,
        ApprovalEventRecord,
        ApprovalService,
        approvers_by_policy,
        outcome_error,
        present_approval,
        summarize_approvals,
    )
    from gateway.approvals.webhook_delivery import (
        InvalidWebhook,
        WebhookDeliverer,
        WebhookTarget,
        sign_headers,
        webhooks_by_event,
    )
else:
    __getattr__ = lazy_exports(__name__)
