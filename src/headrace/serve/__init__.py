"""Run pipelines in one process and report on them."""
