"""Can this spec work? Rules between keys, and the online checks."""
