"""Storage: local folders and S3 behind one interface."""
