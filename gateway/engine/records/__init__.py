"""What is recorded of calls and reads: rows, decision log, idempotency."""
