"""The running of flows: loading, admission, commits, steps, timers."""

__all__: list[str] = []
