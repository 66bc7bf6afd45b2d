"""Routing of messages: route table, routing decisions, route advertisements. Without I/O."""

__all__: list[str] = []
