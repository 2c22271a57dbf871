"""Every diagnostic code: what it means and what to do about it.

Codes are an interface: reports, suppressions and other programs name them, so they are added, never renamed. Who finds
a problem is elsewhere; `configs/README.md` prints these sentences.
"""

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final

_FILES: Final = {
    "missing-folder": "The folder is not there. Correct the path, or create it.",
    "not-a-folder": "A file is given where a folder is read. Give the folder that holds it.",
    "unreadable-folder": "The folder cannot be opened. Give the gateway's user permission to read it.",
    "unreadable-file": "The file cannot be opened, or is a pipe or a device. Give permission, or replace it by a file.",
    "link-outside": "A link leaves the folder, so what it holds escapes review. Copy the file into the folder.",
    "no-documents": "No YAML file was found. Names end in .yaml or .yml; hidden files are passed over.",
    "bad-encoding": "The file is not UTF-8 text. Save it as UTF-8.",
    "file-too-large": "The file is larger than a file may be. Split it.",
    "control-character": "The text has an invisible character, which could hide something from a reader. Remove it.",
    "too-many-problems": "There are more problems than are worth reading at once. Correct these and check again.",
}
_YAML: Final = {
    "yaml-syntax": "The text is not YAML. The caret is where reading stopped; the cause may stand just before it.",
    "yaml-tag": "Tags are not read, because they make other readers run code or guess types. Quote text, drop the tag.",
    "not-a-mapping": "A document is a mapping with apiVersion, kind, metadata and spec. Write those four keys.",
    "duplicate-key": "A key is given twice, and readers disagree on which one counts. Keep one of them.",
    "key-type": "A key is not text. Put it in quotes.",
    "merge-key": "Merge keys (<<) are not read. Write the fields out.",
    "number-range": "The number is too large to be kept exactly. Put it in quotes if it is text.",
    "unknown-anchor": "An alias has no anchor above it. Write the value out, or correct the name.",
    "anchor-cycle": "A value contains itself through its anchor. Write it out.",
    "alias-limit": "The file has more aliases than are followed. Write values out, or split the file.",
    "too-deep": "Values are nested deeper than any document needs. Flatten them.",
}
_ENVIRONMENT: Final = {
    "env-missing": "An environment variable is not set, or is empty. Set it, or give a default: ${NAME:-default}.",
    "env-syntax": "What stands between ${ and } is no reference. Write ${NAME}, or $$ for a dollar.",
    "env-encoding": "An environment variable is not UTF-8. Set it to UTF-8 text.",
    "env-limit": "The variables of a document stand for too much text. Use fewer or shorter ones.",
}
_SHAPE: Final = {
    "unknown-kind": "No document has this kind. The nearest name is suggested.",
    "unknown-version": "The format has no such version. Write apiVersion: gateway/v1.",
    "unknown-field": "The mapping has no such field; unknown fields are refused at every depth. Correct or remove it.",
    "missing-field": "A field that is needed here is not there. Add it.",
    "wrong-type": "The value is of another type; nothing is converted, so 5 is not text and 1 is not true.",
    "wrong-value": "The value has the right type, but cannot stand here or does not fit the fields around it.",
    "bad-duration": "A duration is a number and a unit: 500ms, 10s, 5m, 2h, 1d.",
    "bad-size": "A size is a number and a unit: 100B, 256KiB, 1MiB, 10MB.",
    "bad-date": "A day or moment does not exist, is written in another way, or lies on the wrong side of another one.",
    "bad-time": 'A time of day has two digits for the hour and two for the minute: "08:00".',
    "bad-version": "A version has three numbers, in quotes where two of them would be a number: 1.4.2.",
    "bad-name": "A name holds other characters than its kind of name allows, or lacks its prefix. Rename it.",
    "bad-url": "An address is not a full one, carries a user name, or has a placeholder outside its path.",
    "bad-network": "Networks are your own ones, by their first address and length. Link-local ones cannot be named.",
    "bad-path": "A path is not of the kind that is needed here: absolute, under the catalogue's root, or a JSONPath.",
    "bad-entrypoint": "A Python object is named by its module, a colon and its name: acme_tools.pricing:quote.",
    "secret-as-text": "A secret stands in the document. Write where it comes from instead, and replace the secret.",
}
_REFERENCES: Final = {
    "unknown-reference": "A name leads to no document. Correct it, or add the document.",
    "duplicate-name": "Two documents of a kind have one name. Rename or remove one of them.",
    "no-gateway": "There is no Gateway document, so nothing says which parts are in use. Add one.",
    "second-gateway": "There is more than one Gateway document. Keep one; differences between places are overlays.",
    "overlay-target": "A patch names a document that is not there, or one that overlays may not change. Correct it.",
    "overlay-duplicate": "An environment has two overlays. Join them.",
    "overlay-missing": "The environment has no overlay while others have one. Correct its name, or add an overlay.",
    "overlay-remove": "A patch removes a field that is not there. Remove the line.",
    "unknown-argument": "An approval shows, or a condition names, an argument that no tool of its rule takes. Correct "
    "the name.",
    "unknown-role": "An audience, an approver list or a condition names a role that no identity provider and no policy "
    "row grants. Correct the name, or grant the role.",
    "upstream-argument": "What is said about an argument does not fit the upstream's tool: it takes no such argument, "
    "refuses the value, or needs what is hidden.",
    "wider-schema": "Callers may give what the upstream's tool refuses, or leave out what it needs. Narrow the schema.",
    "bad-openapi": "The OpenAPI document is not there, or is none that can be read. Correct it, or its path.",
    "skipped-operation": "A chosen operation cannot be a tool. Correct the OpenAPI document, or exclude the operation.",
    "idle-import": "The import names an operation, or selects by what no operation has. Correct the name.",
    "no-credentials": "Operations want credentials, and the Upstream has none: the service will refuse. Add 'auth'.",
    "unknown-query": "The artifact has no such query. The queries it has are listed.",
}
_PROGRAMS: Final = {
    "bad-condition": "A CEL expression cannot be compiled, or names what conditions do not know.",
    "argument-type": "A condition compares an argument with a value of another type, or gives it to a function that "
    "takes another type, so it never holds. Write the value with the type of the argument.",
    "argument-value": "A condition compares an argument with a value that the schemas of its tools do not allow. Use a "
    "value that they allow.",
    "constant-condition": "A condition has the same answer for every call, so the rule protects nothing or refuses "
    "everything. Correct the condition.",
    "bad-schema": "A JSON Schema is not one, or cannot be enforced. The caret is at the part that is refused.",
    "bad-options": "An artifact class does not take these options. The ones it takes are listed.",
    "unknown-stage": "No stage has this name. The nearest name is suggested.",
    "stage-phase": "The stage belongs to another phase of the pipeline. Move it there.",
    "stage-order": "The stages stand in an order that cannot work. Move the named one up.",
    "stage-repeated": "A stage stands in a phase twice. Remove one.",
    "package-not-allowed": "Python code comes from a package that the process does not allow. Add it to "
    "GATEWAY_PYTHON_PACKAGES if it may run there.",
    "entrypoint-missing": "The module cannot be imported, or has no such function. Install it, or correct the name.",
    "not-an-artifact-class": "The class lacks the methods of an artifact. Derive it from gateway.SpooledArtifact.",
}
_TRUST: Final = {
    "tier-forbids-flag": "The tool's tier forbids something the tool can do. Choose another tier, or drop the ability.",
    "effects-undeclared": "Nothing says what a tool does, so it counts as writes, destructive and egress. Declare its "
    "flags; flags: [] says that it has no effects.",
    "effects-contradicted": "Flags leave out what the upstream says of its tool, or what its method means. Correct "
    "them; a server's own warning counts either way.",
    "tier-forbids-backend": "The tool's tier forbids this kind of backend. Choose another tier or backend.",
    "tier-forbids-confirmation": "The rule lets callers confirm their own calls of a tool whose tier forbids that. "
    "Use type: approval, or match other tools.",
    "tier-forbids-trusted": "Results of this tier are never trusted text. Remove trusted: true.",
    "not-pinned": "The tier wants imported tools pinned in the lock file. Lock them.",
    "review-missing": "The tier wants a review, and there is none. Review the tool; write down when and by whom.",
    "review-overdue": "The review is older than the tier allows. Review again before twice that time has passed.",
    "review-expired": "The review is more than twice as old as the tier allows: nobody can call the tool any more.",
    "review-in-future": "The review has a date that has not come yet. Correct it.",
    "forbidden-combination": "Abilities that must not meet do meet in a catalogue. Exclude a tool, or have the "
    "combination waived for a time.",
    "waiver-expired": "The waiver's last day is over, and what it bears is still there. End that, or renew it.",
    "idle-waiver": "The waiver lifts what is not there. Remove it, before it lifts something that is.",
    "token-expired": "The token's last day is over, so nobody can use it. Remove or renew it.",
}
_NAMES: Final = {
    "name-collision": "Two tools want one name in a catalogue, and the policy lets neither have it, or the one that "
    "would get it is trusted less. Rename one.",
    "look-alike": "Two names look the same to a reader, which is how one tool passes for another. Rename one.",
    "reserved-name": "The name belongs to the gateway or is kept free by the collision policy. Choose another one.",
    "name-style": "Models spell lower-case snake_case best. Rename the tool, if its clients can follow.",
    "path-taken": "Two catalogues are published under one path. Give each its own.",
}
_LOCK: Final = {
    "bad-lock": "The lock file is not one, or of another version. Lock the upstreams again.",
    "lock-tampered": "A digest in the lock file does not fit its definition, so nobody knows what was looked at.",
    "lock-source": "The upstream is not the server that was locked, so nothing of it counts as pinned. Lock it again.",
    "hidden-text": "A definition has characters that nobody sees, or that turn text around. Do not import it.",
    "mixed-alphabets": "A word of a definition mixes alphabets, which is how one word passes for another. Compare it.",
    "long-text": "A text of a definition is longer than anybody reads, or a value is a text. Read it to its end.",
    "foreign-address": "A definition has an address of a host that is not its server's. Allow the host, or ask why.",
    "undeclared-argument": "A definition speaks of an argument that its schema lacks. Find out where a value would go.",
    "mentions-tool": "A definition speaks of another server's tool, which is how one server steers another. Ask why.",
    "instructs-model": "A definition speaks to the model instead of saying what a tool does. Read it with care.",
    "bad-definition": "A definition of an upstream cannot be served: its name or its schema is unusable. Exclude it.",
    "not-locked": "A document asks for what nobody has locked, so that it is not served. Correct the name, or lock it.",
    "idle-lock": "The lock file tells of what no document lets in. Lock again, and it is gone.",
}
_CATALOGUES: Final = {
    "pipeline-refuses": "The catalogue's pipeline refuses a tool for what it can do. Exclude it, or change pipelines.",
    "retry-writes": "A call that writes would be tried again and could happen twice. Spare such tools: unlessFlags.",
    "idle-selector": "An entry of the catalogue chooses nothing, most often because of a typo. Correct or remove it.",
    "cache-skips": "Answers of tools that write are never kept, so the stage does nothing for them. Use another "
    "pipeline.",
    "idle-rule": "A gate rule, or a pattern in it, is about no tool of its catalogues, so it guards nothing. Correct "
    "what it matches.",
    "memory-resets": "The rule remembers one turn, and a new session begins a new one. Look at the caller: caller.saw, "
    "or scope: caller.",
    "memory-off": "The rule looks back, and in a catalogue of it calls without a handle remember nothing. Leave "
    "implicit turns on.",
    "nobody-approves": "Calls that the rule holds wait in vain: nobody, too few, or only the requester could approve.",
    "anchors-beside-log": "Whoever can change the log can change its anchors as well, so they prove nothing. Keep them "
    "on another mount.",
    "store-in-clear": "Results are sent to the object store without encryption, so whoever is on the way can read "
    "them. Write https://.",
    "unmarked-json": "JSON of tools that are not trusted (structuredContent) goes out beside the envelope, unmarked. "
    "Set publish.structured: off, unless only programs read it.",
    "reads-gateway": "A program may read the gateway's own records or secrets, because it may read a folder that holds "
    "them. Name the folders it needs.",
    "redact-hides": "Only JSON and YAML can be masked in parts; of other results nothing is shown. Use another base.",
    "unpublished-tool": "No catalogue publishes the tool, so nobody can call it. Include it, or make it a draft.",
    "past-removal": "The deprecated tool's last day is over. Remove the document, or set lifecycle: retired.",
    "no-replacement": "Callers of a deprecated tool are not told what to use, or cannot use what they are told.",
}
_POLICIES: Final = {
    "file-missing": "A folder of policies needs model.conf and at least policy.csv.",
    "line-too-long": "The line is longer than any row can be. Split it into rows.",
    "policy-model": "The model.conf says something else than the model that decides. Restore it; rules are rows.",
    "unknown-section": "A row starts with p (permission), g (member of a role) or g2 (object in a group).",
    "row-arity": "The row has more or fewer columns than its section. Casbin would fail on every request.",
    "quoted-cell": "Cells are written without quotes; a quoted one would match nothing.",
    "policy-effect": "The effect is allow or deny; anything else would count as nothing.",
    "unknown-action": "The action is none of those that are asked for, so the row would never match.",
    "unknown-catalogue": "The row names a catalogue that is not declared. Correct it, or write *.",
    "unknown-tier": "The row's ceiling is no declared tier, so it would never match. Correct it.",
    "bad-object": "Objects are written with their kind: tool:NAME, class:NAME, catalogue:NAME and so on, or config.",
    "bad-pattern": "The pattern holds what no name can hold. Only * is special.",
    "role-cycle": "Roles contain each other in a circle. Remove one link.",
    "role-depth": "The chain of roles is longer than is followed. Give the member a role further up directly.",
    "dead-rule": "A cell matches nothing that is declared, or nobody holds the role: the row does nothing.",
    "duplicate-row": "Another row says the same. Remove one, so that a later edit changes the meaning.",
    "shadowed-allow": "A deny covers everything the row allows. Remove the row, or narrow the deny.",
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
    }
)
"""The codes as people look for them; each stands in one group."""

CODES: Final[Mapping[str, str]] = MappingProxyType(
    dict(chain.from_iterable(codes.items() for codes in GROUPS.values()))
)
