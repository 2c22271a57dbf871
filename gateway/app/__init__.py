"""The composition root: builds a running gateway from settings, secrets, stores and a project.

May import every package except `cli`. Only `cli` and the pytest plug-in import it.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.app.app import App, AppInputs, ConfigInvalid, start_app
    from gateway.app.asgi_apps import build_asgi_apps
    from gateway.app.attestations import find_attestation_policy, list_attestations
    from gateway.app.backend_factory import probe_upstreams
    from gateway.app.bundle import (
        MOST_NUMBER,
        Bundle,
        BundleManifest,
        InvalidBundle,
        hash_files,
        load_bundle,
        pack_bundle,
        sign_manifest,
        signer_key_id,
        verify_bundle,
    )
    from gateway.app.cluster.cluster_setup import ClusterSetup, PeerSettings, RouterFactory, load_peer_key
    from gateway.app.cluster.worker_router import WorkerRouter
    from gateway.app.cluster.worker_supervisor import WorkerConfig, WorkerSupervisor
    from gateway.app.project import PYTHON_VARIABLES, LoadedProject, ProjectFolders, load_project
    from gateway.app.project_files import read_project_files
    from gateway.app.project_source import (
        LastGoodBundle,
        ProjectCopy,
        ProjectSource,
        bundle_keys,
        choose_source,
        read_bundle,
        state_folder,
        unpack_bundle,
        write_atomic,
    )
    from gateway.app.revisions.reload import Reloader, prepare_from_source
    from gateway.app.secrets import Secrets
    from gateway.app.settings import Settings, describe_expected, format_default, get_variable_name
    from gateway.app.startup_checks import refuse_shared_port
    from gateway.app.stores.databases import (
        PostgresLocation,
        PostgresUrl,
        SpoolLocation,
        check_spool,
        copy_all_results,
        load_postgres,
        locate_storage,
        open_spool,
    )
    from gateway.app.stores.operator_stores import (
        AuditedGrants,
        AuditedStopList,
        CallTrace,
        find_project_call,
        list_project_calls,
        list_project_grants,
        load_project_usage,
        load_trace,
        load_usage,
        open_operator_store,
    )
    from gateway.app.stores.recorded_calls import open_recorded_calls, read_recorded_calls
    from gateway.app.stores.recorded_entries import open_exported_calls
    from gateway.app.telemetry_setup import configure_log_output
    from gateway.app.upstream_discovery import UpstreamDefinitions, discover, open_connections
else:
    __getattr__ = lazy_exports(__name__)
