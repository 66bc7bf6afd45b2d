"""How messages of cells are delivered: links, dispatcher, requests, fast paths."""

__all__: list[str] = []
