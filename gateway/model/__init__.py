"""The model as a library: tools, calls, turns, gates, media, envelopes. It knows no framework and no file format.

May import `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.model.caller import CallerChannel, Credential, LogLevel, Principal, Question, QuestionMethod
    from gateway.model.envelopes.trust_envelope import (
        Authority,
        compute_nonce,
        content_envelope,
        escape_tags,
        render_off_loop,
        result_envelope,
    )
    from gateway.model.llm_prompt import (
        Renderer,
        assemble_prompt,
        describe_artifacts,
        join_bodies,
        media_of,
        render_inline,
        result_authority,
    )
    from gateway.model.media import (
        InMemoryMediaReader,
        Media,
        MediaKind,
        ModalityHazard,
        OpenedMediaReader,
        TrustTier,
        modality_hazard,
    )
    from gateway.model.primitives.canonical_json import (
        UNDEFINED,
        call_id,
        canonical,
        canonical_unchecked,
        format_js_number,
        to_pretty_json,
    )
    from gateway.model.primitives.concurrency import CompletedAwaitable, EagerCoroutine, check_cancelled, run_in_thread
    from gateway.model.primitives.containers import DottedDict, deep_copy_containers, freeze
    from gateway.model.primitives.deadline import (
        Deadline,
        current_deadline,
        duration_microseconds,
        from_microseconds,
        now_microseconds,
        reset_deadline,
        set_deadline,
        to_microseconds,
    )
    from gateway.model.primitives.identifiers import new_id, new_random_64, new_random_128, new_secret, new_token
    from gateway.model.primitives.json_fingerprint import (
        LARGE,
        CallIdentity,
        TooManyValues,
        call_identity,
        check_values,
        exact_digest,
        exact_json,
        fast_call_identity,
        fingerprint_of,
        is_short,
        read_json,
        reads_exactly,
        run_in_json_thread,
        set_value_limit,
    )
    from gateway.model.primitives.name_patterns import (
        CONFIG_OBJECT,
        NAME_REGEX,
        OBJECT_KINDS,
        PATTERN_REGEX,
        SUBJECT_KINDS,
        SUBJECT_NAME_REGEX,
        confusable_skeleton,
        fold_name,
        glob_matches,
        globs_overlap,
    )
    from gateway.model.primitives.visible_text import (
        BLANK_LETTERS,
        escape_character,
        escape_invisible,
        is_unseen,
        split_unseen,
    )
    from gateway.model.provider_formats import (
        ContentBlock,
        ProviderName,
        format_size,
        mcp_block,
        sanitize_file_name,
        sanitize_mime_type,
        text_block,
        to_provider_definition,
    )
    from gateway.model.schema.problems import OF_CALLER
    from gateway.model.schema.schema import MAX_STRUCTURED_SIZE, NO_VALUE, OutputSchema, Schema, parse_output
    from gateway.model.schema.subschemas import Subschemas
    from gateway.model.schema.value_normalisation import coerce
    from gateway.model.tokenizer import BUILTIN_ENCODINGS, ESTIMATORS, TIKTOKEN_ENCODINGS, Tokenizable, warn_into
    from gateway.model.tools.artifact import (
        Artifact,
        ByteStore,
        ContentStream,
        SpoolContent,
        SpoolReader,
        candidate_call_ids,
        is_artifact,
        is_artifact_class,
        is_spool_reader,
        piece_id,
        pieces_of,
    )
    from gateway.model.tools.backend import (
        CURRENT_REFRESH,
        IDEMPOTENCY_HEADER,
        Backend,
        BackendError,
        BackendErrorKind,
        CallPipeline,
        CallStage,
        Invocation,
        OutboundRequest,
        OutboundTracer,
        RefreshTracer,
        UpstreamMeta,
    )
    from gateway.model.tools.tool import ArtifactTool, OnCollision, Tool, ToolContext, artifact_constructor_problems
    from gateway.model.tools.tool_call import UNNAMED_TOOL, Results, ToolCall, decode_arguments
    from gateway.model.tools.tool_registry import ToolRegistry
    from gateway.model.turns.context import CallContext, DispatchContext, QueryGuard, TurnContext
    from gateway.model.turns.conversation_records import (
        CALLBACKS,
        RECORD_KINDS,
        Callback,
        CallTotals,
        RecordKind,
        RecordSet,
        ToolCallSet,
        TurnRecordSets,
        record_kind_plural,
    )
    from gateway.model.turns.events import (
        DispatchEnd,
        DispatchStart,
        DispatchStatus,
        ErrorEvent,
        EventBuses,
        GenerationStats,
        IterationEnd,
        IterationStart,
        Listener,
        ToolCallEvent,
        ToolExecutionEnd,
        ToolExecutionStart,
        TurnEnd,
        TurnEvent,
        TurnGateClosed,
        TurnGateOpen,
        TurnStart,
        WarningEvent,
        elapsed_milliseconds,
        now,
    )
    from gateway.model.turns.middleware_pipeline import Middleware, Next, is_abort, is_task_cancelled, run_pipeline
    from gateway.model.turns.progress_reporter import Reporter
    from gateway.model.turns.turn_gate import TurnGate
else:
    __getattr__ = lazy_exports(__name__)
