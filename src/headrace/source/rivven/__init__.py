"""The source `rivven`: the wire protocol, a client, and the source itself."""
