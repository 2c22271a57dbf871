"""What is declared, linked and immutable: the snapshot with one registry for each kind.

May import `model` and `errors`. The snapshot also names the type of a gate rule, which is in `policy`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.registries.argument_mapping import ArgumentMapping, ArgumentPath, schema_accepts
    from gateway.registries.collision_resolution import (
        Collision,
        CollisionRules,
        MergedTools,
        NamedTool,
        NameKind,
        merge_tools,
    )
    from gateway.registries.definition_drift import (
        ChangeSeverity,
        DefinitionChange,
        compare_definitions,
        highest_severity,
    )
    from gateway.registries.definition_scan import ReviewContext, is_visible, other_upstream_tools, review_definition
    from gateway.registries.diagnostics import Diagnostic, Position, Severity, sort_diagnostics, suggest_name
    from gateway.registries.effective_trust import (
        DeclaredTrust,
        EffectiveTrust,
        Tier,
        TrustProblem,
        derive_hints,
        resolve_trust,
    )
    from gateway.registries.grant_policy import GrantPolicy
    from gateway.registries.imported_definition import (
        KINDS,
        DefinitionKind,
        InvalidDefinition,
        UpstreamDefinition,
        build_tool_definition,
        hash_definition,
        to_plain_data,
    )
    from gateway.registries.pipeline_stages import (
        BUILT_IN_STAGES,
        PHASES,
        Phase,
        Stage,
        add_plug_in_stages,
        check_stage_order,
        plug_in_group,
    )
    from gateway.registries.policy_cases import EarlierCall, ExpectedReason, PolicyCase
    from gateway.registries.snapshot import (
        CALLABLE_LIFECYCLES,
        CONTENT,
        SHORT_REVISION,
        ArtifactClass,
        Catalogue,
        CollisionPolicy,
        DeclaredDefinition,
        DeclaredDocument,
        DeclaredTool,
        Deprecation,
        DocumentRegistry,
        Pipeline,
        PipelineStage,
        Query,
        Requested,
        Snapshot,
        compute_revision,
        describe_tool,
    )
    from gateway.registries.tool_flags import (
        BUILT_IN_FLAGS,
        CHANGES,
        EFFECT_FLAGS,
        WRITES,
        Combination,
        Flag,
        Hint,
        Proposal,
        Waiver,
        add_implied_flags,
        claims_not_idempotent,
        contradicts_method,
        find_claimed_flags,
        find_forbidden_combinations,
        in_effect_order,
        method_flags,
        most_alarming,
        propose_flags,
    )
    from gateway.registries.tool_selection import QUERY_PREFIX, GovernedTool, Selector, ToolIndex, select_tools
else:
    __getattr__ = lazy_exports(__name__)
