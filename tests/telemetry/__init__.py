"""What telemetry writes: spans, metrics, log records and the feed of `watch` and the inspector."""
