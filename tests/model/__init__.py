"""A model of the batch protocol: the real ledger, tail, marks and intents in a world whose every step is decided."""
