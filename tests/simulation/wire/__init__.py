"""Scenario `wire`: the services of a client and a server, joined by a bad network."""
