"""The `postroad` command: one module for each group of commands, loaded when it is used."""

__all__: list[str] = []
