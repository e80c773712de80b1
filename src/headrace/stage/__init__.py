"""Staging: rows become Parquet files in the table's storage that no commit names yet."""
