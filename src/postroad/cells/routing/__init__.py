"""How messages of cells are routed: table, decisions, advertisements. Without I/O."""

__all__: list[str] = []
