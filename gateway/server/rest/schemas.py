"""JSON Schemas of requests and responses. Requests are validated with them; tests validate responses."""

from collections.abc import Mapping
from typing import Any, Final

Document = dict[str, Any]

TEXT: Final[Document] = {"type": "string"}
TIMESTAMP: Final[Document] = {"type": "string", "format": "date-time"}
FLAG: Final[Document] = {"type": "boolean"}
SIZE: Final[Document] = {"type": ["integer", "null"], "minimum": 0}
ANYTHING: Final[Document] = {"type": "object", "additionalProperties": True}
NAME: Final[Document] = {"type": "string", "minLength": 1, "maxLength": 256}

CALL_ID: Final[Document] = {
    "type": "string",
    "pattern": "^[!-.0-~]{1,256}$",
    "not": {"enum": [".", ".."]},
    "description": "The caller's own id of a call, stored unchanged: visible ASCII characters, no slash.",
}
ARGUMENTS: Final[Document] = {
    "anyOf": [ANYTHING, {"type": "string", "description": "The same as JSON text, as models write it."}],
    "description": "The arguments of the tool: an object, or its JSON text.",
}
TURN_ENDINGS: Final = ("ack", "nack", "abort")


def object_of(properties: Mapping[str, Any], *, optional: tuple[str, ...] = ()) -> Document:
    """Return the schema of an object with these members and no others, all required but the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def ref(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}


def array_of(item: Document) -> Document:
    return {"type": "array", "items": item}


REQUESTS: Final[Mapping[str, Document]] = {
    "CallRequest": object_of(
        {
            "arguments": ARGUMENTS,
            "turn": {
                **NAME,
                "description": "The turn handle from an earlier call. Calls without one share one state for rules.",
            },
        },
        optional=("arguments", "turn"),
    ),
    "TurnRequest": object_of(
        {
            "catalogue": NAME,
            "stash": {**ANYTHING, "description": "Initial values of the turn's stash, for middleware and tools."},
        },
        optional=("stash",),
    ),
    "TurnCallRequest": object_of(
        {"id": CALL_ID, "tool": NAME, "arguments": ARGUMENTS},
        optional=("id", "arguments"),
    ),
    "EndRequest": object_of({"as": {"enum": list(TURN_ENDINGS), "description": "How the turn ends."}}),
    "QueryRequest": {
        **object_of(
            {
                "tool": {**NAME, "description": "The name of a query tool, such as artifact_grep."},
                "method": {**NAME, "description": "Alternatively the method that the tool calls, such as grep."},
                "arguments": {**ANYTHING, "description": "The arguments of the query, without callId."},
            },
            optional=("tool", "method", "arguments"),
        ),
        "oneOf": [{"required": ["tool"]}, {"required": ["method"]}],
    },
}

_ARTIFACT: Final = {
    "callId": TEXT,
    "kind": {**TEXT, "description": "The class that reads it, such as SpooledJsonArtifact."},
    "type": {**TEXT, "description": "The artifact class it was declared as."},
    "byteLength": SIZE,
    "lineCount": SIZE,
    "href": TEXT,
    "contentHref": TEXT,
}
_MEDIA: Final = {
    "id": TEXT,
    "kind": {"enum": ["image", "audio", "video", "document"]},
    "mimeType": TEXT,
    "filename": TEXT,
    "trustTier": TEXT,
    "modalityHazard": TEXT,
    "source": TEXT,
    "contentHref": TEXT,
}
_RECORD: Final = {
    "callId": TEXT,
    "turn": TEXT,
    "tool": TEXT,
    "catalogue": TEXT,
    "revision": TEXT,
    "arguments": {**ANYTHING, "description": "The arguments, unless the call was refused."},
    "argumentsExcerpt": {
        **object_of(
            {
                "text": {**TEXT, "description": "Short, with secrets masked: enough to distinguish calls."},
                "bytes": {"type": "integer", "description": "Length of the arguments as canonical JSON."},
                "sha256": {**TEXT, "description": "SHA-256 of the arguments as canonical JSON, in hexadecimal digits."},
            }
        ),
        "description": "The stored excerpt of the arguments of a refused call.",
    },
    "checksum": TEXT,
    "status": {"enum": ["settled", "unknown", "started"]},
    "decision": {"enum": ["allow", "hold", "deny", None]},
    "isError": FLAG,
    "inline": FLAG,
    "trusted": FLAG,
    "fromArtifactTool": FLAG,
    "startedAt": TIMESTAMP,
    "completedAt": {"anyOf": [TIMESTAMP, {"type": "null"}]},
    "idempotencyKey": TEXT,
    "href": TEXT,
    "result": ref("Result"),
}
_LISTED_TOOL: Final = {
    "name": TEXT,
    "title": TEXT,
    "description": TEXT,
    "inputSchema": ANYTHING,
    "outputSchema": {**ANYTHING, "description": "Schema of `structuredContent` of a result, unless it is an error."},
    "tier": TEXT,
    "flags": {**array_of(TEXT), "description": "The effects that the tool is assumed to have."},
    "effects": {
        "enum": ["declared", "implied", "unknown"],
        "description": "How the effects are known: from a document, from the HTTP method, or not at all. Unknown "
        "effects count as the worst, and there are no hints.",
    },
    "lifecycle": {"enum": ["active", "deprecated"]},
    "deprecation": object_of({"since": TEXT, "removeAfter": TEXT, "use": TEXT}, optional=("use",)),
    "hints": {"type": "object", "additionalProperties": FLAG},
    "artifact": TEXT,
    "isQuery": FLAG,
}

ANSWERS: Final[Mapping[str, Document]] = {
    "Problem": {
        **object_of(
            {
                "type": TEXT,
                "title": TEXT,
                "status": {"type": "integer"},
                "detail": TEXT,
                "code": TEXT,
                "help": TEXT,
                "errors": array_of(object_of({"at": TEXT, "detail": TEXT})),
                "callId": {**TEXT, "description": "The id of a call whose tool may have run; see its record."},
                "turn": {**TEXT, "description": "The turn of that call."},
            },
            optional=("code", "help", "errors", "callId", "turn"),
        ),
        "description": "RFC 9457. `code` is stable; `help` explains what to do.",
    },
    "Catalogue": object_of(
        {"name": TEXT, "title": TEXT, "revision": TEXT, "path": TEXT, "instructions": TEXT, "tools": TEXT},
        optional=("title", "instructions"),
    ),
    "Catalogues": object_of({"catalogues": array_of(ref("Catalogue")), "revision": TEXT}),
    "Tool": object_of(
        _LISTED_TOOL,
        optional=("title", "outputSchema", "tier", "flags", "effects", "lifecycle", "deprecation", "hints", "artifact"),
    ),
    "Tools": object_of(
        {
            "tools": array_of({"anyOf": [ref("Tool"), ANYTHING]}),
            "format": {"enum": ["gateway", "mcp", "openai", "anthropic", "gemini"]},
            "revision": TEXT,
        }
    ),
    "Artifact": object_of(_ARTIFACT),
    "Media": object_of(_MEDIA, optional=("source",)),
    "Result": object_of(
        {
            "kind": {"enum": ["text", "artifact", "media"]},
            "text": TEXT,
            "artifact": ref("Artifact"),
            "artifacts": array_of(ref("Artifact")),
            "media": array_of(ref("Media")),
        },
        optional=("text", "artifact", "artifacts", "media"),
    ),
    "Called": {
        **object_of(
            {
                "callId": TEXT,
                "turn": TEXT,
                "tool": TEXT,
                "checksum": TEXT,
                "isError": FLAG,
                "inline": FLAG,
                "trusted": {
                    **FLAG,
                    "description": "Whether the text is trusted. Errors, handles and media never are.",
                },
                "result": ref("Result"),
                "rendered": {**TEXT, "description": "The result as a model reads it."},
                "structuredContent": {
                    "description": "The JSON of the result, if the tool has an output schema or returned JSON and text."
                },
                "next": {**ANYTHING, "description": "The arguments to change in a call for the next page."},
                "startedAt": TIMESTAMP,
                "completedAt": TIMESTAMP,
                "replayed": FLAG,
                "pending": ref("Pending"),
                "limited": ref("Limited"),
                "notRecorded": {
                    **object_of({"code": TEXT, "message": TEXT}),
                    "description": "The tool ran while the store failed: the outcome is recorded when it recovers, and "
                    "the call must not be repeated.",
                },
            },
            optional=("structuredContent", "next", "replayed", "pending", "limited", "notRecorded"),
        ),
        "description": "The record of a call with any outcome; the HTTP status reports which.",
    },
    "Pending": {
        **object_of(
            {
                "status": {"const": "pending"},
                "retryAfter": {"type": "integer", "minimum": 1, "description": "Seconds."},
                "approvals": array_of(
                    object_of({"id": TEXT, "rule": TEXT, "reason": TEXT, "expiresAt": TIMESTAMP, "href": TEXT})
                ),
            }
        ),
        "description": "The call has not run: it waits for approvers. Sent again with the same arguments, it runs once "
        "they have agreed.",
    },
    "Limited": {
        **object_of(
            {
                "status": {"const": "limited"},
                "kind": {"enum": ["rate", "quota"]},
                "rule": TEXT,
                "retryAfter": {"type": "integer", "minimum": 1, "description": "Seconds; also the header Retry-After."},
            }
        ),
        "description": "The call has not run: there were too many calls. It is not counted, and can be sent again.",
    },
    "Turn": object_of(
        {
            "id": TEXT,
            "catalogue": TEXT,
            "revision": TEXT,
            "createdAt": TIMESTAMP,
            "expiresAt": TIMESTAMP,
            "endedAt": TIMESTAMP,
            "ending": {"enum": [*TURN_ENDINGS, "expired"]},
            "stash": ANYTHING,
            "href": TEXT,
        },
        optional=("endedAt", "ending"),
    ),
    "Record": object_of(_RECORD, optional=("arguments", "argumentsExcerpt", "idempotencyKey", "result")),
    "Records": object_of({"calls": array_of(ref("Record")), "next": TEXT}, optional=("next",)),
    "Verification": object_of(
        {
            "callId": TEXT,
            "turn": TEXT,
            "checksum": TEXT,
            "computed": {"type": ["string", "null"], "description": "Null for a refused call: arguments not stored."},
            "digest": TEXT,
            "computedDigest": {"type": ["string", "null"]},
            "isIntact": {"type": ["boolean", "null"]},
            "detail": TEXT,
        },
        optional=("detail",),
    ),
    "Rendering": object_of({"messages": array_of(ANYTHING)}),
    "Query": object_of({"tool": TEXT, "method": TEXT, "description": TEXT, "inputSchema": ANYTHING}),
    "ArtifactDetails": object_of(
        {
            **_ARTIFACT,
            "turn": TEXT,
            "tool": TEXT,
            "catalogue": TEXT,
            "contentType": TEXT,
            "trusted": FLAG,
            "sensitivity": TEXT,
            "createdAt": TIMESTAMP,
            "parts": array_of({"anyOf": [ref("Artifact"), ref("Media")]}),
            "queries": array_of(ref("Query")),
        },
        optional=("sensitivity", "lineCount"),
    ),
    "AnyTool": {"anyOf": [ref("Tool"), ANYTHING]},
    "OpenApi": ANYTHING,
}
