"""OTLP and JSON lines: encoding, queues, transports."""
