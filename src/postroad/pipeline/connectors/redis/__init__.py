"""Connectors: redis."""
