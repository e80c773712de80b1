"""The source `danube`: a receiver that stores messages in the spool before it acknowledges them."""
