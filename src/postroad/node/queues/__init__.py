"""Durable queues whose messages have a type: their declaration, their consumers, their schemas."""

__all__: list[str] = []
