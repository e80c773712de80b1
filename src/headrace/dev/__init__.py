"""For development and the demo: an embedded Kafka, the demo, class archives."""
