"""Consumption of queues: loading, prefetch, dispatch, acknowledgements."""

__all__: list[str] = []
