"""SQL expressions: parsed by DuckDB, checked against an allow-list, written again from the tree."""
