"""A spec compiled into a pure function over Arrow batches: route, decode, transform, conform. No Spark."""
