"""Connectors: redis."""

__all__: list[str] = []
