"""Jobs run on many segments at a time, with the same outcome as one by one. Needs NumPy."""

__all__: list[str] = []
