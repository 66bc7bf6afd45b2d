"""Connectors: sql."""

__all__: list[str] = []
