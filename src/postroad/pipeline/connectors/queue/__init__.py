"""Connectors: queue."""
