"""The path of a call: service, handler, guard, turns, records, stages.

May import `approvals`, `artifacts`, `audit`, `mcp`, `model`, `policy`, `registries`, `storage` and `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.engine.artifact_classes import ArtifactTypes
    from gateway.engine.call import (
        DEFAULT_HOLD_POLICY,
        NOT_WAITING,
        RAN_UNRECORDED,
        Call,
        Course,
        HoldPolicy,
        OutcomeLost,
        find_current_call,
        get_current_call,
        set_client_info,
        set_request_origin,
    )
    from gateway.engine.caller_interaction import CONFIRM, CallerCannotAnswer, log_message
    from gateway.engine.gates.definition_guard import (
        DefinitionAccepted,
        DefinitionChanged,
        DefinitionGuard,
        DefinitionStatusChanged,
        PinnedDefinition,
        PinnedTemplate,
        format_definition_key,
    )
    from gateway.engine.gates.guard import GuardDependencies
    from gateway.engine.gates.turn_gate_approvals import HandlerGates
    from gateway.engine.handler import HandlerDependencies, Journal, build_handler
    from gateway.engine.held_calls import HeldCall, HeldCalls, UnknownTask
    from gateway.engine.live_revision import InlinePolicy, LiveCatalogue, LiveRevision
    from gateway.engine.observer import CallMeter, Observer, PeerAddress, RequestObservation, get_trace_headers
    from gateway.engine.records.auditor import Auditor, grant_entry, stop_entry
    from gateway.engine.records.call_mapper import is_intact, is_queryable, recompute_fingerprint
    from gateway.engine.records.idempotency import MAX_KEY, is_key
    from gateway.engine.records.replay_arguments import ReplayCapture
    from gateway.engine.records.resource_audit import ResourceRequest
    from gateway.engine.result_content import (
        ABSENT,
        CallOutcome,
        ContentRenderer,
        ResultContent,
        advertised_output_schema,
        artifact_uri,
        build_trust_meta,
        media_meta,
        mime_type_of,
        render_text,
    )
    from gateway.engine.service import DEFAULT_RETENTION, Service
    from gateway.engine.stages.factory import (
        StageState,
        ToolLimits,
        build_phase_stages,
        call_stages,
        chain_stages,
        refusal_before,
    )
    from gateway.engine.stages.resilience import CircuitState
    from gateway.engine.stages.result_stages import InlineSmallResults, redact_artifact, redact_json
    from gateway.engine.stages.turn_stages import LoopGuard
    from gateway.engine.tool_lists import SLICE, ListedTool, ToolListing
    from gateway.engine.turns.turn import Turn
    from gateway.engine.turns.turn_store import SharedTurnState, TurnSync
    from gateway.engine.upstream_resources import ChangeNotification, ResourceCatalogue, UnknownResource
else:
    __getattr__ = lazy_exports(__name__)
