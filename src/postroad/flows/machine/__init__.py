"""The state machine of one flow, without I/O: code, history, replay."""

__all__: list[str] = []
