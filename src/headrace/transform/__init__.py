"""Transform: SQL and JMESPath expressions over records."""
