"""The shapes of requests and answers, as JSON Schema. Requests are checked against these; tests check answers."""

from collections.abc import Mapping
from typing import Any, Final

Document = dict[str, Any]

TEXT: Final[Document] = {"type": "string"}
MOMENT: Final[Document] = {"type": "string", "format": "date-time"}
FLAG: Final[Document] = {"type": "boolean"}
SIZE: Final[Document] = {"type": ["integer", "null"], "minimum": 0}
ANYTHING: Final[Document] = {"type": "object", "additionalProperties": True}
NAME: Final[Document] = {"type": "string", "minLength": 1, "maxLength": 256}

CALL_ID: Final[Document] = {
    "type": "string",
    "pattern": "^[!-.0-~]{1,256}$",
    "not": {"enum": [".", ".."]},
    "description": "The caller's own id of a call, kept as it is: visible ASCII characters, no slash.",
}
ARGUMENTS: Final[Document] = {
    "anyOf": [ANYTHING, {"type": "string", "description": "The same as JSON text, as models write it."}],
    "description": "What the tool is called with: an object, or its JSON text.",
}
ENDINGS: Final = ("ack", "nack", "abort")


def closed(properties: Mapping[str, Any], *, optional: tuple[str, ...] = ()) -> Document:
    """An object with these members and no others, all of them there but the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def ref(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}


def many(item: Document) -> Document:
    return {"type": "array", "items": item}


REQUESTS: Final[Mapping[str, Document]] = {
    "CallRequest": closed(
        {
            "arguments": ARGUMENTS,
            "turn": {
                **NAME,
                "description": "The handle that an earlier call gave. Calls without one share what rules remember.",
            },
        },
        optional=("arguments", "turn"),
    ),
    "TurnRequest": closed(
        {
            "catalogue": NAME,
            "stash": {**ANYTHING, "description": "What middleware and tools find in the turn's stash."},
        },
        optional=("stash",),
    ),
    "TurnCallRequest": closed(
        {"id": CALL_ID, "tool": NAME, "arguments": ARGUMENTS},
        optional=("id", "arguments"),
    ),
    "EndRequest": closed({"as": {"enum": list(ENDINGS), "description": "How the turn ends."}}),
    "QueryRequest": {
        **closed(
            {
                "tool": {**NAME, "description": "The name of a query tool, such as artifact_grep."},
                "method": {**NAME, "description": "Or the method it calls, such as grep."},
                "arguments": {**ANYTHING, "description": "Everything the query takes besides the callId."},
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
    "arguments": {**ANYTHING, "description": "Of a call that was not refused."},
    "argumentsExcerpt": {
        **closed(
            {
                "text": {**TEXT, "description": "Short, with secrets masked: to tell calls apart."},
                "bytes": {"type": "integer", "description": "How long the arguments were, as canonical JSON."},
                "sha256": {**TEXT, "description": "Of the arguments as canonical JSON, in hexadecimal digits."},
            }
        ),
        "description": "What is kept of the arguments of a call that was refused.",
    },
    "checksum": TEXT,
    "status": {"enum": ["settled", "unknown", "started"]},
    "decision": {"enum": ["allow", "hold", "deny", None]},
    "isError": FLAG,
    "inline": FLAG,
    "trusted": FLAG,
    "fromArtifactTool": FLAG,
    "startedAt": MOMENT,
    "completedAt": {"anyOf": [MOMENT, {"type": "null"}]},
    "idempotencyKey": TEXT,
    "href": TEXT,
    "result": ref("Result"),
}
_LISTED_TOOL: Final = {
    "name": TEXT,
    "title": TEXT,
    "description": TEXT,
    "inputSchema": ANYTHING,
    "outputSchema": {**ANYTHING, "description": "What `structuredContent` of a result fits, unless it is an error."},
    "tier": TEXT,
    "flags": {**many(TEXT), "description": "What the tool counts as able to do."},
    "effects": {
        "enum": ["declared", "implied", "unknown"],
        "description": "Who says what the tool does: a document, its HTTP method, or nobody. Unknown effects count as "
        "the worst, and there are no hints.",
    },
    "lifecycle": {"enum": ["active", "deprecated"]},
    "deprecation": closed({"since": TEXT, "removeAfter": TEXT, "use": TEXT}, optional=("use",)),
    "hints": {"type": "object", "additionalProperties": FLAG},
    "artifact": TEXT,
    "isQuery": FLAG,
}

ANSWERS: Final[Mapping[str, Document]] = {
    "Problem": {
        **closed(
            {
                "type": TEXT,
                "title": TEXT,
                "status": {"type": "integer"},
                "detail": TEXT,
                "code": TEXT,
                "help": TEXT,
                "errors": many(closed({"at": TEXT, "detail": TEXT})),
                "callId": {**TEXT, "description": "Of a call whose tool may have run; look at its record."},
                "turn": {**TEXT, "description": "The turn of that call."},
            },
            optional=("code", "help", "errors", "callId", "turn"),
        ),
        "description": "RFC 9457. `code` is stable; `help` says what to do.",
    },
    "Catalogue": closed(
        {"name": TEXT, "title": TEXT, "revision": TEXT, "path": TEXT, "instructions": TEXT, "tools": TEXT},
        optional=("title", "instructions"),
    ),
    "Catalogues": closed({"catalogues": many(ref("Catalogue")), "revision": TEXT}),
    "Tool": closed(
        _LISTED_TOOL,
        optional=("title", "outputSchema", "tier", "flags", "effects", "lifecycle", "deprecation", "hints", "artifact"),
    ),
    "Tools": closed(
        {
            "tools": many({"anyOf": [ref("Tool"), ANYTHING]}),
            "format": {"enum": ["gateway", "mcp", "openai", "anthropic", "gemini"]},
            "revision": TEXT,
        }
    ),
    "Artifact": closed(_ARTIFACT),
    "Media": closed(_MEDIA, optional=("source",)),
    "Result": closed(
        {
            "kind": {"enum": ["text", "artifact", "media"]},
            "text": TEXT,
            "artifact": ref("Artifact"),
            "artifacts": many(ref("Artifact")),
            "media": many(ref("Media")),
        },
        optional=("text", "artifact", "artifacts", "media"),
    ),
    "Called": {
        **closed(
            {
                "callId": TEXT,
                "turn": TEXT,
                "tool": TEXT,
                "checksum": TEXT,
                "isError": FLAG,
                "inline": FLAG,
                "trusted": {
                    **FLAG,
                    "description": "Whether we vouch for the text, never for errors, handles or media.",
                },
                "result": ref("Result"),
                "rendered": {**TEXT, "description": "What a model would read of the result."},
                "structuredContent": {
                    "description": "The JSON of the result, where the tool promises it or it came beside the text."
                },
                "next": {**ANYTHING, "description": "What to call the tool with, besides the same, for the next page."},
                "startedAt": MOMENT,
                "completedAt": MOMENT,
                "replayed": FLAG,
                "pending": ref("Pending"),
                "limited": ref("Limited"),
                "notRecorded": {
                    **closed({"code": TEXT, "message": TEXT}),
                    "description": "The tool ran while the store failed: the outcome is recorded when it recovers, and "
                    "the call must not be repeated.",
                },
            },
            optional=("structuredContent", "next", "replayed", "pending", "limited", "notRecorded"),
        ),
        "description": "The record of a call, whatever came of it; the status of the answer says what did.",
    },
    "Pending": {
        **closed(
            {
                "status": {"const": "pending"},
                "retryAfter": {"type": "integer", "minimum": 1, "description": "Seconds."},
                "approvals": many(
                    closed({"id": TEXT, "rule": TEXT, "reason": TEXT, "expiresAt": MOMENT, "href": TEXT})
                ),
            }
        ),
        "description": "The call has not run: people are asked. Sent again with the same arguments, it runs once they "
        "have agreed.",
    },
    "Limited": {
        **closed(
            {
                "status": {"const": "limited"},
                "kind": {"enum": ["rate", "quota"]},
                "rule": TEXT,
                "retryAfter": {"type": "integer", "minimum": 1, "description": "Seconds; also the header Retry-After."},
            }
        ),
        "description": "The call has not run: too many were made. It is not counted, and may be sent again.",
    },
    "Turn": closed(
        {
            "id": TEXT,
            "catalogue": TEXT,
            "revision": TEXT,
            "createdAt": MOMENT,
            "expiresAt": MOMENT,
            "endedAt": MOMENT,
            "ending": {"enum": [*ENDINGS, "expired"]},
            "stash": ANYTHING,
            "href": TEXT,
        },
        optional=("endedAt", "ending"),
    ),
    "Record": closed(_RECORD, optional=("arguments", "argumentsExcerpt", "idempotencyKey", "result")),
    "Records": closed({"calls": many(ref("Record")), "next": TEXT}, optional=("next",)),
    "Verification": closed(
        {
            "callId": TEXT,
            "turn": TEXT,
            "checksum": TEXT,
            "computed": {"type": ["string", "null"], "description": "Null for a refused call: its arguments are gone."},
            "digest": TEXT,
            "computedDigest": {"type": ["string", "null"]},
            "isIntact": {"type": ["boolean", "null"]},
            "detail": TEXT,
        },
        optional=("detail",),
    ),
    "Rendering": closed({"messages": many(ANYTHING)}),
    "Query": closed({"tool": TEXT, "method": TEXT, "description": TEXT, "inputSchema": ANYTHING}),
    "ArtifactDetails": closed(
        {
            **_ARTIFACT,
            "turn": TEXT,
            "tool": TEXT,
            "catalogue": TEXT,
            "contentType": TEXT,
            "trusted": FLAG,
            "sensitivity": TEXT,
            "createdAt": MOMENT,
            "parts": many({"anyOf": [ref("Artifact"), ref("Media")]}),
            "queries": many(ref("Query")),
        },
        optional=("sensitivity", "lineCount"),
    ),
    "AnyTool": {"anyOf": [ref("Tool"), ANYTHING]},
    "OpenApi": ANYTHING,
}
