"""The coordinator of a job: what was delivered, what failed, what is written."""

__all__: list[str] = []
