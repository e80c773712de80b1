"""Interfaces of other systems: the builder API."""
