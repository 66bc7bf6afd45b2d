"""Delivery of messages: dispatcher, tunnels, mailboxes, requests, fast paths."""

__all__: list[str] = []
