"""The source `http`: a server that appends the records of requests to the spool, or sends them to Kafka."""
