"""Where calls, results and counters are stored.

May import `approvals`, `artifacts`, `audit`, `model`, `policy` and `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.storage.blobs.blob_copy import CopyProgress, copy_blobs
    from gateway.storage.blobs.blob_store import InlineBlobStore
    from gateway.storage.blobs.bucket_store import BucketSpool
    from gateway.storage.blobs.disk_store import DiskSpool
    from gateway.storage.blobs.result_spool import Known, ResultSpool
    from gateway.storage.blobs.s3_client import BucketAddress, import_obstore
    from gateway.storage.cache_invalidation import ChangeSignal, FileChangeSignal
    from gateway.storage.call_store import (
        ArgumentExcerpt,
        AuditBody,
        CallFilter,
        CallStore,
        ExtendedTurn,
        HeldKey,
        ReplayArguments,
        StoredCall,
        StoredResult,
        StoredTurn,
        TurnEndReason,
        TurnStateStore,
        argument_data,
    )
    from gateway.storage.rate_table import RateTable
    from gateway.storage.refusal_store import MAX_REFUSALS, WINDOW, RecordStore, Refusal, RefusalCount
    from gateway.storage.sql.approvals import AuditHook, SqlApprovalStore
    from gateway.storage.sql.audit_log import (
        MAX_PRUNED_ENTRIES,
        AuditLog,
        can_prune_audit,
        delete_audit_batch,
        find_expired_prefixes,
        list_shards,
    )
    from gateway.storage.sql.engine_base import ReadPool
    from gateway.storage.sql.flags_seen_by_caller import StoredSightings
    from gateway.storage.sql.grants import SqlGrantStore
    from gateway.storage.sql.group_commit import GroupCommit
    from gateway.storage.sql.postgres.connection import PostgresAuditReader, open_read_only_session
    from gateway.storage.sql.postgres.database_setup import (
        import_sqlite,
        migrate_postgres,
        postgres_findings,
        read_schema_state,
    )
    from gateway.storage.sql.postgres.dialect import PostgresAuditLog
    from gateway.storage.sql.postgres.engine import PostgresStore, open_postgres_store, require_schema_version_at
    from gateway.storage.sql.postgres.heartbeat import APPROVALS, Heartbeat, PostgresChangeSignal, notify_channel
    from gateway.storage.sql.postgres.limits import PostgresLimitStore
    from gateway.storage.sql.postgres.writer import PostgresWriter
    from gateway.storage.sql.quotas import SqlQuotas
    from gateway.storage.sql.read_only.call_history import CallHistory, CallRow, open_call_history
    from gateway.storage.sql.read_only.call_usage import count_usage
    from gateway.storage.sql.read_only.read_only_store import (
        RemoteStore,
        SqliteAuditReader,
        StoreLocation,
        find_audit_entries,
        find_call_approvals,
        find_calls,
        list_calls,
        list_grants,
        open_for_reading,
    )
    from gateway.storage.sql.sqlite.connection import SqliteConnection
    from gateway.storage.sql.sqlite.database_setup import (
        is_served,
        require_not_lost,
        retry_while_locked,
        upgrade_in_child,
    )
    from gateway.storage.sql.sqlite.disk_space import DiskSpaceMonitor, descriptor_problem
    from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
    from gateway.storage.sql.sqlite.integrity import (
        QUICK_SECONDS,
        Finding,
        Told,
        check_quickly,
        iter_named_results,
        result_findings,
        sqlite_findings,
    )
    from gateway.storage.sql.sqlite.sigbus_recovery import survive_bus_errors
    from gateway.storage.sql.sqlite.writer_client import WriterClient
    from gateway.storage.sql.stop_list import SqlStopList
    from gateway.storage.unwritten_outcomes import LateOutcome
else:
    __getattr__ = lazy_exports(__name__)
