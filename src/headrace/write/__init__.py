"""How a batch gets into a table."""
