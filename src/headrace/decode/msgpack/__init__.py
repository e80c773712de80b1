"""MessagePack."""
