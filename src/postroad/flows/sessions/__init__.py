"""Sessions between flows, without I/O: messages and the state of each end."""

__all__: list[str] = []
