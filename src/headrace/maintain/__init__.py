"""Table maintenance between batches."""
