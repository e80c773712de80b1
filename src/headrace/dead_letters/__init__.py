"""Dead letters: read, evaluated, replayed, purged."""
