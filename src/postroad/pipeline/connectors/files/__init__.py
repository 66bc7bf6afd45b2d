"""Connectors: files."""
