"""Staging: write rows as Parquet files that no commit refers to yet."""
