"""What a collector says of a request that it took only in part."""

from gateway.telemetry.settings import Signal


def rejected(signal: Signal, answer: bytes) -> int:
    """How many it refused; an answer that cannot be read refuses nothing."""
    if not answer:
        return 0
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        if signal == "traces":
            return max(0, int(ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans))
        if signal == "metrics":
            return max(0, int(ExportMetricsServiceResponse.FromString(answer).partial_success.rejected_data_points))
        return max(0, int(ExportLogsServiceResponse.FromString(answer).partial_success.rejected_log_records))
    except DecodeError:
        return 0
