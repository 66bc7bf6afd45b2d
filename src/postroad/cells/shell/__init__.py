"""Text commands of cells, and the built-in cells of a domain."""

__all__: list[str] = []
