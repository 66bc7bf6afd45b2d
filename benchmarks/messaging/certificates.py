"""A throw-away trust root with one certificate per node, for the TLS variants."""

from __future__ import annotations

from pathlib import Path

from postroad.admin import create_root, issue


def issue_certificates(directory: Path) -> Path:
    """Make `<node>.pem` and `<node>.key` for both benchmark nodes, once per directory."""
    if not directory.exists():
        create_root(directory)
        for node in ("server", "client"):
            issue(directory, node)
    return directory
