"""Scenario `wire`: the connection machines of a client and a server, joined by a bad network."""
