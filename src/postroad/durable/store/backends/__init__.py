"""The databases a store can be kept in."""

__all__: list[str] = []
