"""The spool: received records on disk, from the acknowledgement until the ledger has recorded them."""
