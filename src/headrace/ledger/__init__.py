"""The ledger: what each batch read and wrote."""
