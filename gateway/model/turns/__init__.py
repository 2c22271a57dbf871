"""One turn: context, pipeline, gates, records, events."""
