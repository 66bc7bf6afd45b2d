"""Connectors: sql."""
