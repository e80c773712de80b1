"""Recovery: resume after an error, rebuild a lost ledger, refill a restored table, reingest lost rows."""
