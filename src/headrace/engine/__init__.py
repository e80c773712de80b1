"""DuckDB as an embedded engine, and exact decimal arithmetic on Arrow columns."""
