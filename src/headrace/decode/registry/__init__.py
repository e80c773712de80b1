"""Schema registries and the framing of registered values."""
