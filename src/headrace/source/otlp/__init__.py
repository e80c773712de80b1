"""The OTLP receiver: export requests over gRPC and HTTP, into the spool."""
