"""The path of a call: service, handler, guard, turns, records, stages.

May import `approvals`, `artifacts`, `audit`, `mcp`, `model`, `policy`, `registries`, `storage` and `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.engine.call import (
        DEFAULT_HOLD_POLICY,
        NOT_WAITING,
        Call,
        HoldPolicy,
        find_current_call,
        get_current_call,
        set_client_info,
        set_request_origin,
    )
    from gateway.engine.caller import CallerCannotAnswer, log_message
    from gateway.engine.content import (
        ABSENT,
        ContentRenderer,
        ResultContent,
        advertised_output_schema,
        artifact_uri,
        build_trust_meta,
        media_meta,
        mime_type_of,
        render_text,
    )
    from gateway.engine.gates.caller_confirmation import CONFIRM
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
    from gateway.engine.gates.handler_gates import HandlerGates
    from gateway.engine.gates.held_calls import HeldCall, HeldCalls, UnknownTask
    from gateway.engine.handler import HandlerDependencies, Journal, build_handler
    from gateway.engine.live_revision import InlinePolicy, LiveCatalogue, LiveRevision
    from gateway.engine.observer import CallMeter, Observer, PeerAddress, RequestObservation, get_trace_headers
    from gateway.engine.outcome import CallOutcome
    from gateway.engine.progress import RAN_UNRECORDED, Course, OutcomeLost
    from gateway.engine.records.auditor import Auditor, stop_entry
    from gateway.engine.records.idempotency import MAX_KEY, is_key
    from gateway.engine.records.resource_audit import ResourceRequest
    from gateway.engine.records.rows import is_intact, is_queryable, recompute_fingerprint
    from gateway.engine.resources import ChangeNotification, ResourceCatalogue, UnknownResource
    from gateway.engine.result_store import ArtifactTypes
    from gateway.engine.service import DEFAULT_RETENTION, ListedTool, Service
    from gateway.engine.stages.contract import chain_stages
    from gateway.engine.stages.factory import StageState, ToolLimits, build_phase_stages, call_stages, refusal_before
    from gateway.engine.stages.resilience import CircuitState
    from gateway.engine.stages.result_views import InlineSmallResults, redact_artifact, redact_json
    from gateway.engine.turns.sync import SharedTurnState, TurnSync
    from gateway.engine.turns.turn import Turn
else:
    __getattr__ = lazy_exports(__name__)
