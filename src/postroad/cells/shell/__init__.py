"""Text commands of cells, and the cells that answer them."""

__all__: list[str] = []
