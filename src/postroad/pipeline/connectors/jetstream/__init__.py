"""Connectors: jetstream."""

__all__: list[str] = []
