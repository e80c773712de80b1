"""Configurations of other systems as specs: one module per dialect, and their detection."""
