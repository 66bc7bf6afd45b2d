"""The dashboard: files that a browser loads from a node, and that speak to its HTTP API.

There is nothing to build and nothing to import here: `static/` is served as it is.
"""

__all__: list[str] = []
