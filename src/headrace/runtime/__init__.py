"""The machine Headrace runs on: Java, jars, the Spark session, the embedded Kafka."""
