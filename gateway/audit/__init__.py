"""The decision log as a library: entries, hash chain, anchors, verification, export.

May import `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.audit.anchors import (
        AnchorFile,
        AnchorSigner,
        AnchorSink,
        InvalidAnchorLine,
        SignedAnchor,
        read_anchor_position,
        read_anchors,
    )
    from gateway.audit.chain import (
        SHARD_NAME,
        Chain,
        ChainHead,
        ChainRow,
        ExpiredPrefix,
        collect_statements,
        find_open_heads,
        genesis_hash,
        parse_body,
        prune_entries,
        shard_name,
    )
    from gateway.audit.content_hash import MIN_BYTES, ContentKey, WeakKey
    from gateway.audit.entries import (
        MAX_TEXT,
        AuditApproval,
        AuditCall,
        AuditCaller,
        AuditClient,
        AuditDecision,
        AuditEntry,
        AuditObject,
        AuditOrigin,
        AuditOutcome,
        AuditTarget,
        AuditVote,
        ChainPosition,
        CountPart,
        DecisionValues,
        OutcomeValues,
        encode_entry,
    )
    from gateway.audit.export import ExportFilter, Format, export_entries
    from gateway.audit.json_lines import InvalidEntry, JsonLinesLog
    from gateway.audit.signing_keys import SigningKey, VerifyKey
    from gateway.audit.verification import VerificationReport, VerificationScope, verify
    from gateway.audit.vocabulary import Effect, Event, Reason, State
else:
    __getattr__ = lazy_exports(__name__)
