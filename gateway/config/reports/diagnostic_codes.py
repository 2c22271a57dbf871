"""Every diagnostic code: its meaning and what to do.

Codes are an interface: reports, suppressions and other programs use them, so they are added, never renamed.
`configs/README.md` has the same sentences.
"""

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final

_FILES: Final = {
    "missing-folder": "The folder does not exist. Correct the path, or create it.",
    "not-a-folder": "The path is a file, but a folder is required. Use the folder that contains the file.",
    "unreadable-folder": "The folder cannot be opened. Give the gateway's user permission to read it.",
    "unreadable-file": "The file cannot be opened, or is not a regular file. Give permission, or replace it.",
    "link-outside": "A link leaves the folder, so its target escapes review. Copy the file into the folder.",
    "no-documents": "The folder has no YAML file. File names end in .yaml or .yml; hidden files are skipped.",
    "bad-encoding": "The file is not UTF-8 text. Save it as UTF-8.",
    "file-too-large": "The file is larger than the limit. Split it.",
    "control-character": "The text has an invisible character, which could hide something from a reviewer. Remove it.",
    "too-many-problems": "The file or document has too many problems to report all. Correct these and check again.",
}
_YAML: Final = {
    "yaml-syntax": "The text is not valid YAML. The caret is where parsing stopped; the cause may be just before it.",
    "yaml-tag": "Tags are not supported: other parsers run code or guess types for them. Remove the tag; quote text.",
    "not-a-mapping": "A document is a mapping with apiVersion, kind, metadata and spec. Write those four keys.",
    "duplicate-key": "A key is repeated, and YAML parsers disagree on which value applies. Remove one.",
    "key-type": "A key is not text. Put it in quotes.",
    "merge-key": "Merge keys (<<) are not supported. Write the fields out.",
    "number-range": "The number is too large to be represented exactly. Put it in quotes if it is text.",
    "unknown-anchor": "An alias has no anchor before it. Write the value out, or correct the name.",
    "anchor-cycle": "A value contains itself through its anchor. Write it out.",
    "alias-limit": "The file has more aliases than the limit. Write values out, or split the file.",
    "too-deep": "Values are nested more deeply than the limit. Flatten them.",
}
_ENVIRONMENT: Final = {
    "env-missing": "An environment variable is not set, or is empty. Set it, or give a default: ${NAME:-default}.",
    "env-syntax": "The text between ${ and } is not a valid reference. Write ${NAME}, or $$ for a dollar.",
    "env-encoding": "An environment variable is not UTF-8. Set it to UTF-8 text.",
    "env-limit": "The variables of a document expand to too much text. Use fewer or shorter ones.",
}
_SHAPE: Final = {
    "unknown-kind": "There is no such kind of document. The nearest name is suggested.",
    "unknown-version": "There is no such version of the format. Write apiVersion: gateway/v1.",
    "unknown-field": "The mapping has no such field; unknown fields are refused at every depth. Correct or remove it.",
    "missing-field": "A required field is missing. Add it.",
    "wrong-type": "The value has the wrong type. Types are not converted: 5 is not text, and 1 is not true.",
    "wrong-value": "The value has the right type but is not allowed here, or contradicts other fields.",
    "bad-duration": "A duration is a number and a unit: 500ms, 10s, 5m, 2h, 1d.",
    "bad-size": "A size is a number and a unit: 100B, 256KiB, 1MiB, 10MB.",
    "bad-date": "A date does not exist, has another format, or is before or after a date that it must not be.",
    "bad-time": 'A time of day has two digits for the hour and two for the minute: "08:00".',
    "bad-version": "A version has three numbers: 1.4.2. Quote it if it could be read as a number.",
    "bad-name": "A name has characters that are not allowed, or lacks its prefix. Rename it.",
    "bad-url": "A URL is incomplete, has a user name, or has a placeholder outside its path.",
    "bad-network": "A network must be private, written as first address and prefix length, and not link-local.",
    "bad-path": "A path has the wrong form: it must be absolute, a valid catalogue path, or a JSONPath.",
    "bad-entrypoint": "A Python object is written as module, colon and name: acme_tools.pricing:quote.",
    "secret-as-text": "The document contains a secret. Write a reference to it instead, and rotate the secret.",
}
_REFERENCES: Final = {
    "unknown-reference": "A name refers to a document that does not exist. Correct it, or add the document.",
    "duplicate-name": "Two documents of a kind have the same name. Rename or remove one of them.",
    "no-gateway": "There is no Gateway document, which selects the parts in use. Add one.",
    "second-gateway": "There is more than one Gateway document. Keep one; use overlays for environments.",
    "overlay-target": "A patch names a document that does not exist, or that overlays must not change. Correct it.",
    "overlay-duplicate": "An environment has two overlays. Merge them.",
    "overlay-missing": "The environment has no overlay, but others have one. Correct its name, or add an overlay.",
    "overlay-remove": "A patch removes a field that does not exist. Remove the line.",
    "unknown-argument": "An approval or a condition uses an argument that no tool of the rule has. Correct the name.",
    "unknown-role": "An audience, a grant, an approver list or a condition names a role that no identity provider or "
    "policy row grants. Correct the name, or grant the role.",
    "upstream-argument": "An argument setting does not fit the upstream's tool: the tool has no such argument, refuses "
    "the value, or requires an argument that is hidden.",
    "wider-schema": "The schema allows calls that the upstream's tool refuses. Narrow the schema.",
    "bad-openapi": "The OpenAPI document does not exist or cannot be read. Correct it, or its path.",
    "skipped-operation": "A selected operation cannot become a tool. Correct its OpenAPI document, or exclude it.",
    "idle-import": "A name or criterion of the import matches no tool or operation. Correct it.",
    "no-credentials": "Operations require credentials, but the Upstream has none, so calls will fail. Add 'auth'.",
    "unknown-query": "The artifact has no such query tool. The available ones are listed.",
}
_PROGRAMS: Final = {
    "bad-condition": "A CEL expression does not compile, or uses an unknown name.",
    "argument-type": "A condition compares an argument with a value of another type, or passes it to a function that "
    "takes another type, so it is never true. Use the type of the argument.",
    "argument-value": "A condition compares an argument with a value that no schema allows. Use an allowed value.",
    "constant-condition": "A condition is always true or always false, so the rule is useless. Correct the condition.",
    "bad-schema": "A JSON Schema is invalid or cannot be enforced. The caret is at the part that is refused.",
    "bad-options": "An artifact class does not accept these options. The accepted ones are listed.",
    "unknown-stage": "There is no such stage. The nearest name is suggested.",
    "stage-phase": "The stage belongs to another phase of the pipeline. Move it there.",
    "stage-order": "The stages are in an order that cannot work. Move the named one up.",
    "stage-repeated": "A stage is listed twice in a phase. Remove one.",
    "package-not-allowed": "Python code is in a package that the process does not allow. Add the package to "
    "GATEWAY_PYTHON_PACKAGES if its code may run.",
    "entrypoint-missing": "The module cannot be imported, or has no such function. Install it, or correct the name.",
    "not-an-artifact-class": "The class lacks the methods of an artifact. Derive it from gateway.SpooledArtifact.",
}
_TRUST: Final = {
    "tier-forbids-flag": "The tool has a flag that its tier forbids. Choose another tier, or remove the ability.",
    "effects-undeclared": "The effects of a tool are not declared, so it counts as writes, destructive and egress. "
    "Declare its flags; flags: [] declares no effects.",
    "effects-contradicted": "The flags omit effects that the upstream declares for its tool, or that its method "
    "implies. Correct them; effects that a server declares always apply.",
    "tier-forbids-backend": "The tool's tier forbids this kind of backend. Choose another tier or backend.",
    "tier-forbids-confirmation": "The rule lets callers confirm their own calls of a tool whose tier forbids it. Use "
    "type: approval, or match other tools.",
    "tier-forbids-trusted": "Results of tools of this tier are never trusted text. Remove trusted: true.",
    "not-pinned": "The tier requires imported tools to be pinned in the lock file. Run gateway lock.",
    "review-missing": "The tier requires a review, and there is none. Review the tool, and add date and reviewer.",
    "review-overdue": "The review is older than the tier allows. Review the tool before twice this time has passed.",
    "review-expired": "The review is more than twice as old as the tier allows, so the tool cannot be called.",
    "review-in-future": "The date of the review is in the future. Correct it.",
    "forbidden-combination": "Tools of a catalogue combine flags that must not be combined. Exclude a tool, or have "
    "the combination waived for a limited time.",
    "waiver-expired": "The waiver has expired, but what it waived still exists. Remove the cause, or renew it.",
    "idle-waiver": "The waiver matches nothing. Remove it, before it waives something unintended.",
    "token-expired": "The last day of the token has passed, so it is not accepted. Remove or renew it.",
}
_NAMES: Final = {
    "name-collision": "Two tools have one name in a catalogue, and policy or trust refuses both. Rename one.",
    "look-alike": "Two names look the same to a reader, so one tool could be mistaken for another. Rename one.",
    "reserved-name": "The name is reserved by the gateway or by the collision policy. Choose another one.",
    "name-style": "Models reproduce lower-case snake_case best. Rename the tool if its clients can change.",
    "path-taken": "Two catalogues are published at the same path. Give each its own.",
}
_LOCK: Final = {
    "bad-lock": "The lock file is invalid or has another version. Lock the upstreams again.",
    "lock-tampered": "A digest in the lock file does not match its definition. Review the definition, and lock it.",
    "lock-source": "The upstream is not the server that was locked, so its definitions are not pinned. Lock it again.",
    "hidden-text": "A definition has invisible characters, or characters that reverse text. Do not import it.",
    "mixed-alphabets": "A word of a definition mixes alphabets, so it could imitate another word. Compare the two.",
    "long-text": "A text of a definition is too long for a reviewer, or a value is a long text. Read all of it.",
    "foreign-address": "A definition has a URL of a host other than its server. Allow the host, or ask the operator.",
    "undeclared-argument": "A definition mentions an argument that its schema lacks. Find out where values would go.",
    "mentions-tool": "A definition mentions another server's tool, and may influence its use. Ask the operator.",
    "instructs-model": "A definition gives instructions to the model instead of describing a tool. Read it with care.",
    "bad-definition": "A definition cannot be served, because its name or schema is unusable. Exclude it.",
    "not-locked": "A document uses a definition that is not locked, so it is not served. Correct the name, or lock it.",
    "idle-lock": "The lock file has a definition or upstream that no document uses. Run gateway lock to remove it.",
}
_CATALOGUES: Final = {
    "pipeline-refuses": "The catalogue's pipeline refuses a flag of a tool. Exclude the tool, or use another pipeline.",
    "retry-writes": "A call that writes would be retried and could take effect twice. Add unlessFlags: [writes].",
    "idle-selector": "An entry of the catalogue selects nothing, most often because of a typo. Correct or remove it.",
    "cache-skips": "Results of tools that write are never cached, so the stage is useless. Use another pipeline.",
    "idle-rule": "A gate rule, or a pattern in it, matches no tool, so it has no effect. Correct spec.match.",
    "memory-resets": "The rule covers one turn, and a new session starts a new turn. Use caller.saw, or scope: caller.",
    "memory-off": "The rule uses earlier calls, but in one of its catalogues calls without a turn handle have none. "
    "Leave implicit turns on.",
    "nobody-approves": "Held calls can never be approved: there are no approvers, too few, or only the requester.",
    "anchors-beside-log": "Anchors next to the log can be changed together with it. Store them on another mount.",
    "store-in-clear": "Results are sent to the object store unencrypted. Write https://.",
    "unmarked-json": "JSON of untrusted tools (structuredContent) is sent without the trust envelope. Set "
    "publish.structured: off, unless only programs read it.",
    "reads-gateway": "A program may read records or secrets of the gateway, because it may read a folder that contains "
    "them. List only the folders that it needs.",
    "redact-hides": "Only JSON and YAML can be masked in parts; other results are hidden completely. Use another base.",
    "unpublished-tool": "No catalogue publishes the tool, so it cannot be called. Include it, or set lifecycle: draft.",
    "past-removal": "The last day of the deprecated tool has passed. Remove the document, or set lifecycle: retired.",
    "no-replacement": "A deprecated tool names no replacement, or one that cannot be called. Name a tool that can.",
}
_POLICIES: Final = {
    "file-missing": "A folder of policies needs model.conf and at least policy.csv.",
    "line-too-long": "The line is longer than a row can be. Split it into rows.",
    "policy-model": "The model.conf differs from the model that the gateway uses. Restore it; rules belong in rows.",
    "unknown-section": "A row starts with p (permission), g (member of a role) or g2 (object in a group).",
    "row-arity": "The row has too many or too few columns for its section. Casbin would fail on every request.",
    "quoted-cell": "Cells are written without quotes; a quoted cell would match nothing.",
    "policy-effect": "The effect must be allow or deny; any other effect would be ignored.",
    "unknown-action": "The gateway never checks this action, so the row would never match.",
    "unknown-catalogue": "The row names a catalogue that is not declared. Correct it, or write *.",
    "unknown-tier": "The tier limit of the row is not a declared tier, so the row would never match. Correct it.",
    "bad-object": "Objects are written with their kind: tool:NAME, class:NAME, catalogue:NAME and so on, or config.",
    "bad-pattern": "The pattern has characters that no name can have. Only * is special.",
    "role-cycle": "Roles contain each other in a cycle. Remove one link.",
    "role-depth": "The chain of roles is longer than the limit. Assign a role further up directly.",
    "dead-rule": "A cell matches nothing that is declared, or no caller has the role, so the row has no effect.",
    "duplicate-row": "Another row is identical. Remove one, so that a later edit of the other takes effect.",
    "row-end": "A comment that ends a row cannot be read, or is not directly above the row that it repeats.",
    "ended-row": "The row has ended and allows or denies nothing. Remove it, with its comment.",
    "ending-row": "The row ends within two weeks. Let it end, or have a longer time reviewed.",
    "shadowed-allow": "A deny covers everything that the row allows. Remove the row, or narrow the deny.",
}

_ATTESTATIONS: Final = {
    "attestation-missing": "The Gateway requires an attestation of this owner, and there is none. Look at the access, "
    "and attest it with gateway access attest.",
    "attestation-expired": "The attestation is over, or older than the Gateway allows. Look at the access, and attest "
    "it again.",
    "attestation-altered": "The list of access in the attestation was edited. Look at the access, and attest it again.",
    "access-grown": "A caller can do more than the attestation lists. Look at it; attest it again, or take it back.",
}

GROUPS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "Files": _FILES,
        "YAML": _YAML,
        "Environment": _ENVIRONMENT,
        "Shape of a document": _SHAPE,
        "References": _REFERENCES,
        "Expressions, schemas, stages, code": _PROGRAMS,
        "Trust": _TRUST,
        "Names": _NAMES,
        "Lock file and definitions": _LOCK,
        "Catalogues and tools": _CATALOGUES,
        "Policies": _POLICIES,
        "Attestations": _ATTESTATIONS,
    }
)
"""Codes by topic; each is in one group."""

CODES: Final[Mapping[str, str]] = MappingProxyType(
    dict(chain.from_iterable(codes.items() for codes in GROUPS.values()))
)
