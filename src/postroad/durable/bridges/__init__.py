"""Delivery between stores: bridges, their manager and control, the receiving end."""

__all__: list[str] = []
