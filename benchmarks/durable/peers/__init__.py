"""The systems compared, one module each, with `receive`, `send` and, for a server, `serve`."""
