"""Connections of the messaging service: clients, servers, tunnels and their pool."""

__all__: list[str] = []
