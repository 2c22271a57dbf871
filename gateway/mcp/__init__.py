"""What the MCP server and the MCP client share: messages, constants, headers, event streams.

May import `model` and `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.mcp.argument_headers import (
        HeaderArgument,
        check_param_headers,
        decode_value,
        encode_header_value,
        find_header_arguments,
        get_value,
        has_header_arguments,
        render_header_value,
    )
    from gateway.mcp.http_bodies import ChunkFraming, FramingTooLarge, SseEvent, SseReader
    from gateway.mcp.messages import (
        HANDSHAKE_DATES,
        HEADER_MISMATCH,
        HTTP_STATUS,
        INTERNAL_ERROR,
        INVALID_PARAMS,
        INVALID_REQUEST,
        LOG_LEVELS,
        MAX_MESSAGE,
        META_CALL,
        META_CAPABILITIES,
        META_CLIENT_INFO,
        META_KEY,
        META_LIMITED,
        META_LOG_LEVEL,
        META_NOT_RECORDED,
        META_PENDING,
        META_SERVER_INFO,
        META_SUBSCRIPTION,
        META_TURN,
        META_VERSION,
        METHOD_NOT_FOUND,
        MISSING_CAPABILITY,
        NAMED_METHODS,
        NEWEST_SESSION_VERSION,
        NEXT_PAGE_META,
        NODE_CHECK_BYTES,
        PARSE_ERROR,
        RAW_BLOCK,
        RESOURCE_NOT_FOUND,
        SESSION_VERSIONS,
        STATELESS_VERSION,
        STATELESS_VERSIONS,
        TASKS_EXTENSION,
        TEXT_BLOCK,
        UNSUPPORTED_VERSION,
        Era,
        Json,
        MessageTooManyValues,
        ProtocolError,
        RequestId,
        check_envelope,
        decode_message,
        decode_now,
        encode_error,
        encode_message,
        encode_notification,
        encode_request,
        encode_result,
        filter_foreign_meta,
        get_request_id,
        is_response_to,
        message_too_large,
    )
else:
    __getattr__ = lazy_exports(__name__)
