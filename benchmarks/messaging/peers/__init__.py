"""The systems compared, one module each, all with `serve` and `client`."""
