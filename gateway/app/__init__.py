"""The composition root: settings, secrets and stores become a running gateway.

May import every package except `cli`. Only `cli` and the pytest plug-in import it.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.app.app import App, AppInputs, ConfigInvalid, start_app
    from gateway.app.backend_factory import probe_upstreams
    from gateway.app.bundles.archive import (
        Bundle,
        load_bundle,
        pack_bundle,
        sign_manifest,
        signer_key_id,
        verify_bundle,
    )
    from gateway.app.bundles.manifest import MOST_NUMBER, BundleManifest, InvalidBundle, hash_files
    from gateway.app.bundles.project_files import read_project_files
    from gateway.app.cluster.members import ClusterMembers, PeerSettings, RouterFactory
    from gateway.app.cluster.routing import WorkerRouter
    from gateway.app.cluster.workers import WorkerConfig, WorkerSupervisor
    from gateway.app.listeners import build_listeners
    from gateway.app.project import PYTHON_VARIABLES, LoadedProject, Project, load_project
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
    from gateway.app.revisions.discovery import UpstreamDefinitions, discover, open_connections
    from gateway.app.revisions.reload import Reloader, prepare_from_source
    from gateway.app.secrets import Secrets
    from gateway.app.settings import Settings, describe_expected, format_default, get_variable_name
    from gateway.app.startup import peer_key, refuse_shared_port
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
    from gateway.app.stores.operator_store import (
        AuditedStopList,
        CallTrace,
        find_project_call,
        list_project_calls,
        load_trace,
        open_stop_list,
    )
    from gateway.app.telemetry_setup import configure_log_output
else:
    __getattr__ = lazy_exports(__name__)
