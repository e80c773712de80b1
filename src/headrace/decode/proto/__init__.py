"""Protobuf: schemas from text and descriptors, fields from the wire, columns from fields."""
