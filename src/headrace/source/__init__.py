"""Sources of records: Kafka and generated events."""
