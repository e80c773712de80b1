"""What restores a pipeline after a stop: decisions, lost ledgers, restored tables, lost rows."""
