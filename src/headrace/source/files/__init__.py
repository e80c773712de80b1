"""The source `files`: new files below a directory or prefix."""
