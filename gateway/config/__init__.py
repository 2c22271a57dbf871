"""From text to documents: YAML with positions, the shape of each kind, overlays, linking, lock, reports.

May import `artifacts`, `backends`, `model`, `policy`, `registries` and `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.config.effective_yaml import render_effective_yaml
    from gateway.config.environment_variables import (
        EnvUse,
        SecretUse,
        drop_unused_documents,
        find_secret_uses,
        substitute_environment,
    )
    from gateway.config.field_docs import UnknownField, build_editor_schema, explain_schema_field
    from gateway.config.kinds.attestations import AttestationDocument
    from gateway.config.kinds.common_specs import (
        AuthSpec,
        BasicAuthSpec,
        BearerAuthSpec,
        CookieAuthSpec,
        EnvValue,
        HeaderAuthSpec,
        QueryAuthSpec,
        SecretSpec,
        ToolLimitsSpec,
    )
    from gateway.config.kinds.identity_providers import (
        AnonymousProviderSpec,
        IdentityProviderDocument,
        JwtProviderSpec,
        TokenProviderSpec,
    )
    from gateway.config.kinds.installation import (
        AuditSpec,
        CaptureSpec,
        ConsoleExporter,
        ExporterSpec,
        FileExporter,
        GatewayDocument,
        GatewaySpec,
        NoneExporter,
        OtlpGrpcExporter,
        OtlpHttpExporter,
        TelemetryDocument,
        TelemetrySpec,
        WebhookSpec,
    )
    from gateway.config.kinds.storage import (
        FileBlobsSpec,
        PostgresStorageSpec,
        RetentionSpec,
        S3BlobsSpec,
        SqliteStorageSpec,
        StorageDocument,
    )
    from gateway.config.kinds.tools import (
        CommandBackendSpec,
        ExitCodesSpec,
        HttpBackendSpec,
        McpBackendSpec,
        MediaOutputSpec,
        OpenApiBackendSpec,
        PythonBackendSpec,
        SandboxSpec,
        ToolDocument,
        ToolSpec,
        UpstreamBackendSpec,
    )
    from gateway.config.kinds.upstreams import (
        ClientCredentialsAuth,
        GrantedAuthSpec,
        HealthSpec,
        ImportSpec,
        OpenApiTransport,
        StdioTransport,
        StreamableHttpTransport,
        TokenExchangeAuth,
        UpstreamAuthSpec,
        UpstreamDocument,
        UpstreamSpec,
    )
    from gateway.config.linking.artifact_classes import (
        ALLOWED_PACKAGES_VARIABLE,
        UnusableObject,
        find_built_in_class,
        import_object,
    )
    from gateway.config.linking.linker import link_documents
    from gateway.config.linking.policy_checks import find_ungranted_roles
    from gateway.config.linking.tool_effects import propose_import_flags
    from gateway.config.linking.upstream_imports import imports_tool
    from gateway.config.linking.upstream_schema_checks import build_argument_mapping
    from gateway.config.loader import CheckedDocument, ConfigDocuments, load_documents
    from gateway.config.lock.lock_file import ANY_SOURCE, LOCK_FILE, Lock, LockedUpstream, read_lock, render_lock
    from gateway.config.lock.openapi_files import (
        OpenApiDefinitions,
        openapi_transport,
        read_bounded,
        read_openapi_files,
        select_definitions,
    )
    from gateway.config.lock.pin_resolution import is_selected, is_url, list_upstreams, lock_source, resolve_pins
    from gateway.config.overlays import OverlayDocument, apply_overlays, is_overlay
    from gateway.config.reports.diagnostic_codes import CODES
    from gateway.config.reports.renderers import (
        SourceLines,
        escape_invisible,
        render_blocks,
        render_report,
        render_summary,
    )
    from gateway.config.yaml.document import YamlDocument, truncate_line
    from gateway.config.yaml.folder import list_files, read_documents
else:
    __getattr__ = lazy_exports(__name__)
