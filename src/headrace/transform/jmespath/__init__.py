"""JMESPath expressions, compiled to SQL where that is provably equal."""
