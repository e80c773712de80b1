"""A running pipeline: one batch after the other, from the source into its tables."""
