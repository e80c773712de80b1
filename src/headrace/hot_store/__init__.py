"""The hot store: the rows of the Delta tables, also in a database."""
