"""Sources: where records come from. A source is one file here and one line in `base.SOURCES`."""
