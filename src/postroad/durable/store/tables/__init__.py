"""The tables of a store: what a commit changes in them, and what is read from them."""

__all__: list[str] = []
