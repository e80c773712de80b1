"""Change-event envelopes: Debezium, Rivven, CloudEvents."""
