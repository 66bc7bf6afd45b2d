"""Connectors: queue."""

__all__: list[str] = []
