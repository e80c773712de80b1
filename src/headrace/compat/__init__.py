"""APIs of other systems: the builder API."""
