"""OTLP export requests."""
