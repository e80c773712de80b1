"""Decode: bytes into typed columns, or a reason."""
