"""Messages from queues to flows: of sessions with other flows, and requests of transactions."""

__all__: list[str] = []
