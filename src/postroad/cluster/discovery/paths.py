"""Names as nodes of ZooKeeper, and the paths of entries."""

from __future__ import annotations

from urllib.parse import quote, unquote

from postroad.core import validate_cluster_name
from postroad.core.errors import ConfigError


def registry_path(root: str, cluster: str, kind: str) -> str:
    """Where entries of one kind are kept; raises ConfigError for a root that is no path."""
    return f"{_check_root(root)}/{encode_znode_name(validate_cluster_name(cluster))}/{kind}"


def encode_znode_name(name: str) -> str:
    """A name as ZooKeeper allows it: no slash, not empty, neither `.` nor `..`."""
    return quote(name, safe="").replace(".", "%2E" if name in (".", "..") else ".") or "%"


def decode_znode_name(node: str) -> str | None:
    """The name that a node stands for; None if that name is spelled in another way."""
    name = unquote(node)
    return name if encode_znode_name(name) == node else None


def _check_root(root: str) -> str:
    """Return the path without a slash at its end, or raise ConfigError."""
    top, *nodes = root.rstrip("/").split("/")
    if top or not root or any(not n.isprintable() or n in ("", ".", "..") for n in nodes):
        raise ConfigError(f"root {root!r} is not of the form /path")
    return "/".join(("", *nodes)) if nodes else ""
