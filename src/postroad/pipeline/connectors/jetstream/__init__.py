"""Connectors: jetstream."""
