"""Development tools: embedded Kafka, demo and class archives."""
