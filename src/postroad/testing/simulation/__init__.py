"""Deterministic simulation of a cluster: loop, network, disks and processes."""

__all__: list[str] = []
