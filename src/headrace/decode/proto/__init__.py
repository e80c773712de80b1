"""Protobuf taken apart: schemas out of text, fields off the wire, columns out of fields."""
