"""The web console: pages about pipelines, tables and dead letters, rendered on the server."""
